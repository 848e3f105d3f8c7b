package compile

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Kinds is the table of the kinds of policy. To add or to drop one, change this
// table and the file of the kind.
var Kinds = []*Kind{
	KindNetworkPolicy,
	KindAdminNetworkPolicy,
	KindBaselineAdminNetworkPolicy,
	KindClusterNetworkPolicy,
}

// The other kinds that verdicts depend on. They are not compiled on their own.
var (
	KindNamespace = kind[corev1.Namespace](Kind{Name: "Namespace", Resource: corev1.SchemeGroupVersion.WithResource("namespaces")})
	KindNode      = kind[corev1.Node](Kind{Name: "Node", Resource: corev1.SchemeGroupVersion.WithResource("nodes")})
	KindPod       = kind[corev1.Pod](Kind{Name: "Pod", Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespaced: true})
)

// Object is an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// Kind describes a kind of API object. There is one value for each kind, which
// is compared by its address.
type Kind struct {
	// Name is the kind as in manifests, "NetworkPolicy".
	Name string
	// Resource is where the API server serves the kind.
	Resource   schema.GroupVersionResource
	Namespaced bool
	// Flag is the command-line flag that enables the kind, without dashes. It is
	// empty for kinds that are always enabled: every API server serves them.
	Flag string
	// HasStatus reports whether every server that serves the kind stores a status
	// with conditions.
	HasStatus bool
	// HasDomainNames reports whether rules of the kind may have domain names as peers.
	HasDomainNames bool
	// Tiers are those that policies of the kind can be of, in their order.
	Tiers []policy.Tier
	// PortsField is the field of a rule that has its ports.
	PortsField string
	// Docs is the section of the documentation that describes what is enforced.
	Docs string

	newObject func() Object
	has       func(o any) bool
	// The following are nil for kinds that are not policies.
	strip   func(Object) Object
	compile func(*diagnosis, Object) *Policy
	// admin is nil for kinds that are not administrators' policies.
	admin func(Object) *AdminSpec
}

// pointer is a pointer to O that is an API object.
type pointer[O any] interface {
	*O
	Object
}

// kind completes k, a kind whose objects have the type O.
func kind[O any, P pointer[O]](k Kind) *Kind {
	k.newObject = func() Object { return P(new(O)) }
	k.has = func(o any) bool { _, ok := o.(P); return ok }
	return &k
}

// policyKind completes k, a kind of policy whose objects have the type O. strip
// returns a new object with this metadata and the spec of its argument. compile
// fills in all of a Policy but the fields that all kinds share.
func policyKind[O any, P pointer[O]](k Kind, strip func(metav1.ObjectMeta, P) P, compile func(*diagnosis, P) *Policy) *Kind {
	k.strip = func(o Object) Object {
		return strip(metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), Generation: o.GetGeneration(), Annotations: StripAnnotations(o.GetAnnotations()),
		}, o.(P))
	}
	k.compile = func(d *diagnosis, o Object) *Policy { return compile(d, o.(P)) }
	return kind[O, P](k)
}

// adminKind completes k, a kind of administrators' policies whose objects have the
// type O, see policyKind. spec returns what the policies of all these kinds have, and
// compile a Policy without that. It is left without it if valid is false.
func adminKind[O any, P pointer[O]](k Kind, strip func(metav1.ObjectMeta, P) P, spec func(P) *AdminSpec, compile func(*diagnosis, P) (p *Policy, valid bool)) *Kind {
	k.admin = func(o Object) *AdminSpec { return spec(o.(P)) }
	return policyKind(k, strip, func(d *diagnosis, o P) *Policy {
		p, valid := compile(d, o)
		if valid {
			d.adminSpec(p, spec(o))
		}
		return p
	})
}

// KindOf returns the kind of the policy o, nil if o is no policy.
func KindOf(o any) *Kind {
	if i := slices.IndexFunc(Kinds, func(k *Kind) bool { return k.Has(o) }); i >= 0 {
		return Kinds[i]
	}
	return nil
}

// KindNamed returns the kind of policy of that name, nil if there is none.
func KindNamed(name string) *Kind {
	if i := slices.IndexFunc(Kinds, func(k *Kind) bool { return k.Name == name }); i >= 0 {
		return Kinds[i]
	}
	return nil
}

// PeersField returns the field of a rule that has its peers, for all kinds.
func PeersField(d policy.Direction) string {
	if d == policy.Egress {
		return "to"
	}
	return "from"
}

// New returns an empty object of the kind.
func (k *Kind) New() Object { return k.newObject() }

// Has reports whether o is an object of the kind.
func (k *Kind) Has(o any) bool { return k.has(o) }

// IsPolicy reports whether the kind is one of Kinds.
func (k *Kind) IsPolicy() bool { return slices.Contains(Kinds, k) }

// Strip returns a new object with what is needed of the policy o: its name, its
// generation, EnforcementAnnotation and its spec, which the two share.
func (k *Kind) Strip(o Object) Object { return k.strip(o) }

// AdminSpec returns what administrators' policies of all kinds have, nil if the policy
// o is none.
func (k *Kind) AdminSpec(o Object) *AdminSpec {
	if k.admin == nil {
		return nil
	}
	return k.admin(o)
}

// Compile compiles the policy o. The result refers to o, which must not change.
func (k *Kind) Compile(o Object, features Features) *Policy {
	d := newDiagnosis(k.Name, o, features)
	p := k.compile(d, o)
	p.annotated = o.GetAnnotations()[EnforcementAnnotation]
	p.Enforcement = d.enforcement(o)
	p.Kind, p.Ref, p.Findings, p.features = k, d.ref, d.findings, features
	return p
}

// Diagnose returns what of the policy o cannot be honoured, the same findings in
// the same order that a snapshot has for it. They depend on no other object.
func (k *Kind) Diagnose(o Object, features Features) []policy.Finding {
	return k.Compile(o, features).Findings
}

// Enabled reports whether the kind counts where these kinds are enabled.
func (k *Kind) Enabled(enabled []*Kind) bool { return k.Flag == "" || slices.Contains(enabled, k) }

// String returns the name of the kind.
func (k *Kind) String() string { return k.Name }
