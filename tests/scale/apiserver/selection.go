package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// nodeField is the field that has the node of a pod.
const nodeField = "spec.nodeName"

// attributes are what requests select an object by. They are fields.Fields.
type attributes struct {
	namespace, name string
	node            string // of a pod
	labels          labels.Set
}

func attributesOf(o Object) attributes {
	a := attributes{namespace: o.GetNamespace(), name: o.GetName(), labels: o.GetLabels()}
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

// selection is the objects that a request is about.
type selection struct {
	namespace string // empty for all
	labels    labels.Selector
	fields    fields.Selector
}

func newSelection(namespace, byLabels, byFields string) (s selection, err error) {
	s.namespace = namespace
	if s.labels, err = labels.Parse(byLabels); err != nil {
		return s, fmt.Errorf("labelSelector: %w", err)
	}
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

// has reports whether o is an object that is selected.
func (s selection) has(o object) bool {
	return o.encoded != nil && (s.namespace == "" || s.namespace == o.namespace) &&
		s.labels.Matches(o.labels) && s.fields.Matches(o.attributes)
}

// frameOf returns an event as a client sees it that is sent the selected objects only, nil if
// it does not. An object that is not selected any more is deleted for it, as it was.
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
