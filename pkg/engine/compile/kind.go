package compile

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Kinds is the table of the kinds of policy. To add or to drop one, change this
// table and the file of the kind.
var Kinds = []*Kind{
	KindNetworkPolicy,
	KindAdminNetworkPolicy,
	KindBaselineAdminNetworkPolicy,
	KindClusterNetworkPolicy,
}

// The other kinds that verdicts depend on. Compile does not apply to them.
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

// Kind describes a kind of API object. There is one value for each kind; compare pointers.
type Kind struct {
	// Name is the kind as in manifests, "NetworkPolicy".
	Name string
	// Resource is where the API server serves the kind, in the version that is used here.
	Resource schema.GroupVersionResource
	// Older are versions with the same fields, newest first. They are read from servers that do not
	// serve the version of Resource, and in manifests.
	Older      []string
	Namespaced bool
	// HasStatus reports whether every server that serves the kind stores a status
	// with conditions.
	HasStatus bool
	// HasDomainNames reports whether rules of the kind may have domain names as peers.
	HasDomainNames bool
	// Tiers are the possible tiers of policies of the kind, in order.
	Tiers []policy.Tier
	// PortsField is the name of a rule's field for ports.
	PortsField string
	// HasProposals reports whether the kind may have the fields of proposals.
	HasProposals bool
	// Install adds the Go types of Resource's version to a scheme. It is nil for kinds that are built
	// into Kubernetes.
	Install func(*runtime.Scheme) error
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

// pointer constrains a type parameter to a pointer to O that is an API object.
type pointer[O any] interface {
	*O
	Object
}

// kind fills in the rest of k, a kind whose objects have the type O.
func kind[O any, P pointer[O]](k Kind) *Kind {
	k.newObject = func() Object { return P(new(O)) }
	k.has = func(o any) bool { _, ok := o.(P); return ok }
	return &k
}

// policyKind fills in the rest of k, a kind of policy whose objects have the type O. strip returns
// a new object with the given metadata and the spec of its argument. compile fills in the fields of
// a Policy that differ between kinds.
func policyKind[O any, P pointer[O]](k Kind, strip func(metav1.ObjectMeta, P) P, compile func(*diagnosis, P) *Policy) *Kind {
	k.strip = func(o Object) Object {
		return strip(metav1.ObjectMeta{
			Namespace: o.GetNamespace(), Name: o.GetName(), Generation: o.GetGeneration(), Annotations: StripAnnotations(o.GetAnnotations()),
		}, o.(P))
	}
	k.compile = func(d *diagnosis, o Object) *Policy { return compile(d, o.(P)) }
	return kind[O, P](k)
}

// adminKind is policyKind for administrators' policies. spec returns the common part of these
// policies. compile fills in the rest of a Policy; if it returns false for valid, the common part
// is not compiled.
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

// PeersField returns the name of a rule's field for peers. It is the same for all kinds.
func PeersField(d policy.Direction) string {
	if d == policy.Egress {
		return "to"
	}
	return "from"
}

// Resources returns where API servers may serve the kind: Resource and its older versions, newest
// first.
func (k *Kind) Resources() []schema.GroupVersionResource {
	all := []schema.GroupVersionResource{k.Resource}
	for _, version := range k.Older {
		all = append(all, k.Resource.GroupResource().WithVersion(version))
	}
	return all
}

// Reads reports whether objects of a group and version are read as the kind.
func (k *Kind) Reads(version schema.GroupVersion) bool {
	return slices.ContainsFunc(k.Resources(), func(r schema.GroupVersionResource) bool { return r.GroupVersion() == version })
}

// Versions lists the versions that are read, such as "v1beta1 or v1alpha2".
func (k *Kind) Versions() string {
	return strings.Join(append([]string{k.Resource.Version}, k.Older...), " or ")
}

// New returns an empty object of the kind.
func (k *Kind) New() Object { return k.newObject() }

// Has reports whether o is an object of the kind.
func (k *Kind) Has(o any) bool { return k.has(o) }

// IsPolicy reports whether the kind is one of Kinds.
func (k *Kind) IsPolicy() bool { return slices.Contains(Kinds, k) }

// IsCustom reports whether objects of the kind are custom resources, which not every API server
// serves.
func (k *Kind) IsCustom() bool { return k.IsAdmin() || k == KindCIDRGroup }

// IsAdmin reports whether the kind is one of administrators' policies.
func (k *Kind) IsAdmin() bool { return k.admin != nil }

// AdminKinds returns the kinds of administrators' policies.
func AdminKinds() []*Kind {
	return slices.DeleteFunc(slices.Clone(Kinds), func(k *Kind) bool { return !k.IsAdmin() })
}

// AdminKindNames lists the kinds of administrators' policies for messages.
func AdminKindNames() string {
	var names []string
	for _, k := range AdminKinds() {
		names = append(names, k.Name)
	}
	return strings.Join(names, ", ")
}

// Strip returns a new object with the parts of the policy o that are needed: name, generation, the
// annotations that StripAnnotations keeps, and the spec, which is shared with o.
func (k *Kind) Strip(o Object) Object { return k.strip(o) }

// AdminSpec returns the common part of the administrator's policy o, nil if o is a NetworkPolicy.
func (k *Kind) AdminSpec(o Object) *AdminSpec {
	if k.admin == nil {
		return nil
	}
	return k.admin(o)
}

// Compile compiles the policy o, which may refer to groups. The result refers to o, which must not
// change afterwards.
func (k *Kind) Compile(o Object, features Features, groups CIDRGroups) *Policy {
	d := newDiagnosis(k.Name, o, features, groups)
	p := k.compile(d, o)
	p.annotated = StripAnnotations(o.GetAnnotations())
	p.Enforcement = d.enforcement(o, "the policy is")
	d.annotations(o, k.annotations()...)
	if k.Namespaced {
		d.report(o)
	}
	p.Kind, p.Ref, p.Findings, p.features = k, d.ref, d.findings, features
	p.object, p.refersToGroups, p.usedGroups = o, d.refersToGroups, d.usedGroups
	return p
}

// annotations returns the annotations that are read of policies of the kind.
func (k *Kind) annotations() []string {
	if k.Namespaced {
		return []string{EnforcementAnnotation, ReportAnnotation}
	}
	return []string{EnforcementAnnotation} // the condition is always in their status
}

// Diagnose returns the findings about the policy o, in the same order as in a snapshot. They do not
// depend on other objects.
func (k *Kind) Diagnose(o Object, features Features) []policy.Finding {
	return k.Compile(o, features, nil).Findings
}

// Enabled reports whether the kind is enforced if enabled are the administrators' kinds that are.
// NetworkPolicy always is.
func (k *Kind) Enabled(enabled []*Kind) bool { return !k.IsAdmin() || slices.Contains(enabled, k) }

// String returns the name of the kind.
func (k *Kind) String() string { return k.Name }
