package compile

import (
	"errors"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// DenyAnnotation on a namespace says what becomes of packets that policies of its pods deny (DN-1).
const DenyAnnotation = AnnotationDomain + "deny"

// Denial is what becomes of denied packets.
type Denial uint8

// The values of DenyAnnotation.
const (
	Drop   Denial = iota // "drop" or an unknown value: the sender gets no answer
	Reject               // "reject": the sender gets an answer
)

// String returns the value in the annotation.
func (d Denial) String() string {
	if d == Reject {
		return "reject"
	}
	return "drop"
}

// MarshalText implements encoding.TextMarshaler.
func (d Denial) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a value of the annotation, so that a Denial can be a flag.
func (d *Denial) UnmarshalText(text []byte) error {
	switch string(text) {
	case Drop.String():
		*d = Drop
	case Reject.String():
		*d = Reject
	default:
		return errors.New("must be drop or reject")
	}
	return nil
}

// DenialOf reads the annotation of o, which is otherwise unannotated. For an unknown value it returns
// Drop, and known is false.
func DenialOf(o metav1.Object, unannotated Denial) (d Denial, known bool) {
	value, _, ok := annotationOf(o, DenyAnnotation)
	if !ok {
		return unannotated, true
	}
	err := d.UnmarshalText([]byte(value))
	return d, err == nil
}

// denial adds a finding if the value of the annotation of o is unknown.
func (d *diagnosis) denial(o metav1.Object) {
	if _, known := DenialOf(o, Drop); !known {
		value, name, _ := annotationOf(o, DenyAnnotation)
		d.find(location{path: annotationField(name)}, policy.InvalidAnnotation, "%q is neither %v nor %v; denied packets are dropped", value, Drop, Reject)
	}
}
