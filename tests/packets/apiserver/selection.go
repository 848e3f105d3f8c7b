package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// nodeField is the field with the node of a pod.
const nodeField = "spec.nodeName"

// attributes are the attributes by which requests select an object. They implement
// fields.Fields.
type attributes struct {
	namespace, name string
	node            string // of a pod
}

func attributesOf(o Object) attributes {
	a := attributes{namespace: o.GetNamespace(), name: o.GetName()}
	if pod, ok := o.(*corev1.Pod); ok {
		a.node = pod.Spec.NodeName
	}
	return a
}

// Has implements fields.Fields.
func (a attributes) Has(field string) bool { return a.Get(field) != "" }

// Get implements fields.Fields.
func (a attributes) Get(field string) string {
	switch field {
	case metav1.ObjectNameField:
		return a.name
	case nodeField:
		return a.node
	}
	return ""
}

// selection is the set of objects that a request selects.
type selection struct {
	namespace string // empty for all
	fields    fields.Selector
}

func newSelection(namespace, byFields string) (s selection, err error) {
	s.namespace = namespace
	if s.fields, err = fields.ParseSelector(byFields); err != nil {
		return s, fmt.Errorf("fieldSelector: %w", err)
	}
	for _, r := range s.fields.Requirements() {
		if r.Field != metav1.ObjectNameField && r.Field != nodeField {
			return s, fmt.Errorf("fieldSelector: field %q is not served", r.Field)
		}
	}
	return s, nil
}

// has reports whether the selection contains o.
func (s selection) has(o object) bool {
	return o.encoded != nil && (s.namespace == "" || s.namespace == o.namespace) && s.fields.Matches(o.attributes)
}

// frameOf returns an event as a client with this selection sees it, or nil if the client
// does not see it. An object that leaves the selection is deleted for the client, in its
// last selected state.
func (s selection) frameOf(e event) []byte {
	switch old, now := s.has(e.old), s.has(e.now); {
	case old && now, old && e.now.encoded == nil, now && e.old.encoded == nil:
		return e.frame
	case now:
		return frame(watch.Added, e.now.encoded)
	case old:
		return frame(watch.Deleted, withVersion(e.old.encoded, e.version))
	}
	return nil
}

// withVersion returns an encoded object with another version.
func withVersion(encoded []byte, version uint64) []byte {
	o, err := runtime.Decode(encoder, encoded)
	if err == nil {
		o.(Object).SetResourceVersion(fmt.Sprint(version))
		encoded, err = encode(o)
	}
	if err != nil {
		panic(err) // it was encoded here
	}
	return encoded
}
