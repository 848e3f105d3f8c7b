package compile

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// AnnotationDomain is the prefix of the project's annotations.
const AnnotationDomain = "kube-network-policies.x-k8s.io/"

// formerDomain was the prefix up to version 0.2. Annotations with it are still read (AU-8).
const formerDomain = "kube-network-policies.sigs.k8s.io/"

// otherTools reports whether an annotation of AnnotationDomain does not affect verdicts: it belongs
// to the status writer or to kubectl netpol check.
func otherTools(key string) bool {
	name, ours := strings.CutPrefix(key, AnnotationDomain)
	return ours && (slices.Contains([]string{"conditions", "not-enforced", "denials"}, name) || strings.HasPrefix(name, "ignore-"))
}

func formerName(key string) string { return formerDomain + strings.TrimPrefix(key, AnnotationDomain) }

// annotationOf returns the value of an annotation, falling back to its former name, and the name
// that it was found under.
func annotationOf(o metav1.Object, key string) (value, name string, ok bool) {
	for _, name := range []string{key, formerName(key)} {
		if value, ok := o.GetAnnotations()[name]; ok {
			return value, name, true
		}
	}
	return "", key, false
}

func annotationField(name string) *field.Path {
	return field.NewPath("metadata", "annotations").Key(name)
}

// StripAnnotations returns the annotations that affect verdicts or findings, nil if there are none.
func StripAnnotations(all map[string]string) map[string]string {
	var needed map[string]string
	for name, value := range all {
		ours := strings.HasPrefix(name, AnnotationDomain) || strings.HasPrefix(name, formerDomain)
		if ours && !otherTools(name) || strings.HasSuffix(name, "/enforcement") {
			if needed == nil {
				needed = map[string]string{}
			}
			needed[name] = value
		}
	}
	return needed
}

// annotations adds findings about annotations of o without effect or with a former name. read are
// the annotations of its kind.
func (d *diagnosis) annotations(o metav1.Object, read ...string) {
	needed := StripAnnotations(o.GetAnnotations())
	for _, name := range slices.Sorted(maps.Keys(needed)) {
		at := location{path: annotationField(name)}
		now := AnnotationDomain + strings.TrimPrefix(name, formerDomain)
		_, both := needed[now]
		switch {
		case slices.Contains(read, name):
		case slices.Contains(read, now) && both:
			d.find(at, policy.InvalidAnnotation, "%s has no effect beside %s; remove it", name, now)
		case slices.Contains(read, now):
			d.find(at, policy.InvalidAnnotation, "%s has been renamed; write %s", name, now)
		case strings.HasSuffix(name, "/enforcement"):
			d.find(at, policy.InvalidAnnotation, "%s has no effect; write %s", name, EnforcementAnnotation)
		default:
			d.find(at, policy.InvalidAnnotation, "%s has no effect; of a %s these are read: %s", name, d.ref.Kind, strings.Join(read, ", "))
		}
	}
}
