package compile

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDenialOfNamespace(t *testing.T) {
	for _, tt := range []struct {
		annotations map[string]string
		unannotated Denial
		want        Denial
		known       bool
	}{
		{nil, Drop, Drop, true},
		{nil, Reject, Reject, true},
		{map[string]string{DenyAnnotation: "reject"}, Drop, Reject, true},
		{map[string]string{DenyAnnotation: "drop"}, Reject, Drop, true},
		{map[string]string{DenyAnnotation: "Reject"}, Reject, Drop, false},
		{map[string]string{DenyAnnotation: ""}, Reject, Drop, false},
	} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: StripAnnotations(tt.annotations)}}
		if got, known := DenialOf(ns, tt.unannotated); got != tt.want || known != tt.known {
			t.Errorf("%v, otherwise %v: %v (known %v), want %v (known %v)", tt.annotations, tt.unannotated, got, known, tt.want, tt.known)
		}
	}
}
