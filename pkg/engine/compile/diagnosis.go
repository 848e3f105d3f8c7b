package compile

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// diagnosis collects the findings about one policy while it is compiled.
type diagnosis struct {
	features Features
	groups   CIDRGroups
	ref      policy.Ref
	findings []policy.Finding

	refersToGroups bool // whether they are known or not
	usedGroups     []*CIDRGroup
}

func newDiagnosis(kind string, o metav1.Object, features Features, groups CIDRGroups) *diagnosis {
	return &diagnosis{
		features: features,
		groups:   groups,
		ref:      policy.Ref{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Generation: o.GetGeneration()},
	}
}

func (d *diagnosis) find(at location, reason, format string, args ...any) {
	d.findings = append(d.findings, policy.Finding{
		Policy: d.ref, Place: at.place, Field: at.path, Reason: reason, Message: printable.Text(fmt.Sprintf(format, args...)),
	})
}

// nothingLeft marks all findings so far as concerning the whole policy.
func (d *diagnosis) nothingLeft() {
	for i := range d.findings {
		d.findings[i].Whole = true
	}
}
