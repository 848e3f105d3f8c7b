package compile

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

var gateServiceAccounts = &Gate{
	"ServiceAccounts", Proposed, "NPEP-173", "`serviceAccounts` in subjects and peers of administrators' policies",
	func(f *Features) *bool { return &f.ServiceAccounts },
}

// selectAccounts selects the pods of some service accounts (CN-43).
func selectAccounts(p *proposed.EgressPeer) (*policy.PodSelector, error) {
	s := p.ServiceAccounts
	namespaces, err := metav1.LabelSelectorAsSelector(&s.NamespaceSelector)
	if err != nil {
		return nil, err
	}
	if len(s.Names) == 0 {
		return nil, errors.New("there is no name of a service account")
	}
	for _, name := range s.Names {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return nil, fmt.Errorf("%q is not the name of a service account", name)
		}
	}
	return &policy.PodSelector{Namespaces: namespaces, Pods: labels.Everything(), Accounts: s.Names}, nil
}
