package clusterfiles

import (
	"errors"
	"fmt"
)

// Refused is an object that API servers refuse.
type Refused struct {
	Position              Position
	Kind, Namespace, Name string // as far as the object has them
	Policy                bool   // or what looks like one
	Err                   error
}

func (r *Refused) Error() string { return fmt.Sprintf("%s: %v", r.Position, r.Err) }

// Unwrap returns why the object is refused.
func (r *Refused) Unwrap() error { return r.Err }

// refused returns the errors that are joined in err as those of an object that is refused.
// They are tolerable unless it is a policy. A template that the user has not named is no manifest.
func (r *reader) refused(m manifest, of string, policy bool, err error) error {
	if err == nil {
		return nil
	}
	if m.file.templated() && !m.file.named {
		return tolerate(err, "passed over")
	}
	err = r.asRefused(m, of, policy, err)
	if policy {
		return err
	}
	return tolerate(err, "passed over")
}

func (r *reader) asRefused(m manifest, of string, policy bool, err error) error {
	var namespace, name string
	if fields, err := m.doc.Map(); err == nil {
		metadata, _ := fields["metadata"].(map[string]any)
		namespace, _ = metadata["namespace"].(string)
		name, _ = metadata["name"].(string)
	}
	if namespace == "" && !clusterScoped(of) {
		namespace = r.namespace
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for i := range errs {
		errs[i] = &Refused{Kind: of, Namespace: namespace, Name: name, Policy: policy, Err: errs[i]}
	}
	return errors.Join(errs...)
}
