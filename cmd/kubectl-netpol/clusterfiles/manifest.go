package clusterfiles

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/apivalidation"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// manifest is a document in a file, or an item of a list in one.
type manifest struct {
	file file
	doc  *manifestyaml.Document
	// origin is the document that gives the lines: doc itself, or the one that kustomize built
	// it from. It is nil if that is not known.
	origin *manifestyaml.Document
}

// line returns the line of a field, 0 if it is not known.
func (m manifest) line(path string) int {
	if m.origin == nil {
		return 0
	}
	return m.origin.LineOf(path)
}

func (m manifest) fault(path string, err error) error {
	return manifestyaml.Fault{Line: m.line(path), Err: err}
}

// unread returns the fault of something that is no manifest. It is tolerable in a file that the
// user has not named, or a chart made, unless that may have a policy.
func (m manifest) unread(err error, then string) error {
	if m.file.named && !m.file.built || !m.file.templated() && policyKind.Match(m.file.data) {
		return err
	}
	return tolerate(err, then)
}

// policyKind matches the kind of a policy in YAML or JSON.
var policyKind = func() *regexp.Regexp {
	var names []string
	for _, k := range compile.Kinds {
		names = append(names, k.Name)
	}
	return regexp.MustCompile(`\bkind"?\s*:\s*["']?(` + strings.Join(names, "|") + `)`)
}()

// templated reports whether a file is likely a template, such as one of a Helm chart.
func (f *file) templated() bool { return bytes.Contains(f.data, []byte("{{")) }

// locate returns the errors that are joined in err, each with the file and the line.
func (m manifest) locate(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, err := range joined.Unwrap() {
			errs = append(errs, m.locate(err)...)
		}
		return errs
	}
	if t, ok := err.(*tolerable); ok {
		errs := m.locate(t.err)
		for i := range errs {
			errs[i] = &tolerable{errs[i], t.then}
		}
		return errs
	}
	refused, isRefused := err.(*Refused)
	if isRefused {
		err = refused.Err
	}
	fault := manifestyaml.AsFault(err)
	if fault.Line > 0 && m.file.templated() {
		fault.Err = fmt.Errorf("%w (the file has {{: of a template, only what it renders can be read)", fault.Err)
	}
	at := Position{m.file.name, fault.Line}
	if isRefused {
		refused.Position, refused.Err = at, fault.Err
		return []error{refused}
	}
	return []error{fmt.Errorf("%s: %w", at, fault.Err)}
}

// decode decodes an object strictly. For a policy or a CIDRGroup it reports everything that the
// API server would refuse.
func (m manifest) decode(k *kind, into compile.Object) error {
	if !apivalidation.Knows(k.GroupVersionKind) {
		return m.atOrigin(m.doc.Decode(into))
	}
	fields, err := m.doc.Map()
	if err != nil {
		return m.atOrigin(err)
	}
	var errs []error
	for _, e := range apivalidation.Validate(fields) {
		errs = append(errs, m.fault(e.Field, e))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	delete(fields, "status") // early versions of NetworkPolicy had one
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(fields, into, true); err != nil {
		return m.fault("", err)
	}
	return nil
}

// atOrigin moves faults from a document that kustomize built to the document it was built
// from.
func (m manifest) atOrigin(err error) error {
	if err == nil || m.origin == m.doc {
		return err
	}
	return m.fault("", manifestyaml.AsFault(err).Err)
}
