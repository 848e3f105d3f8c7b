package clusterfiles

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	strictjson "sigs.k8s.io/json"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/wellformed"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// reader collects the objects in files.
type reader struct {
	namespace    string
	placeholders int // see Options
	objects      map[key]object
	skipped      map[string]int
	custom       bool // whether some of them are custom resources
	replaced     map[string]bool
	origins      origins
}

type object struct {
	compile.Object
	kind   *kind
	source source
	order  int // of the file
}

func newReader(namespace string, placeholders int) *reader {
	return &reader{
		namespace:    cmp.Or(namespace, metav1.NamespaceDefault),
		placeholders: placeholders,
		objects:      map[key]object{},
		skipped:      map[string]int{},
		replaced:     map[string]bool{},
		origins:      origins{},
	}
}

// commentedSeparator matches a separator with a comment at once, which kubectl takes for a separator and
// YAML does not.
var commentedSeparator = regexp.MustCompile(`(?m)^---#`)

// file reads the objects of a file and returns its faults.
func (r *reader) file(f file) []error {
	var errs []error
	f.data = commentedSeparator.ReplaceAll(f.data, []byte("--- #"))
	for d, err := range manifestyaml.Documents(f.data) {
		m := manifest{f, d, d}
		if err == nil && f.built {
			m.origin = r.origins.find(f.name, d)
		}
		if err == nil {
			err = r.document(m)
		} else {
			err = m.unread(err, "passed over, with what is below it")
		}
		if err != nil {
			errs = append(errs, m.locate(err)...)
		}
	}
	return errs
}

// document reads a document or an item of a list.
func (r *reader) document(m manifest) error {
	head, err := m.doc.Header()
	if err != nil {
		return m.unread(err, "passed over")
	}
	if head.APIVersion == "" || head.Kind == "" {
		return r.headless(m, head)
	}
	if defaults, ok := itemsOf(head); ok && m.doc.Has("items") {
		return r.items(m, defaults)
	}
	k, field, policy, err := classify(head)
	if err != nil {
		return r.refused(m, head.Kind, policy, m.fault(field, err))
	}
	if k == nil {
		r.skipped[skippedKind(head)]++
		r.countPolicies(m)
		r.custom = r.custom || isCustom(head)
		return nil
	}
	return r.object(m, k)
}

// policyFields are fields that policies have and other kinds do not.
var policyFields = []string{"spec.policyTypes", "spec.podSelector", "spec.subject.namespaces", "spec.subject.pods", "spec.subject.serviceAccounts"}

// headless handles an object without apiVersion or kind. Directories may contain YAML files
// that are not manifests.
func (r *reader) headless(m manifest, head manifestyaml.Header) error {
	missing := "apiVersion"
	switch {
	case head.Kind == "" && head.APIVersion == "":
		if !m.file.named && !m.doc.Has("metadata") && !m.doc.Has("spec") {
			r.skipped["file without apiVersion and kind"]++
			return nil
		}
		missing = "apiVersion and kind"
	case head.Kind == "":
		missing = "kind"
	}
	policy := slices.ContainsFunc(policyFields, m.doc.Has) || slices.ContainsFunc(compile.Kinds, func(k *compile.Kind) bool { return k.Name == head.Kind })
	err := m.fault("", fmt.Errorf("%s: missing, not an object of Kubernetes", missing))
	if !policy {
		return tolerate(err, "passed over")
	}
	return r.refused(m, head.Kind, policy, err)
}

// countPolicies says how many policies an object has inside it from which others are made, such as a
// template.
func (r *reader) countPolicies(m manifest) {
	if !policyKind.Match(m.file.data) {
		return
	}
	fields, err := m.doc.Map()
	if err != nil {
		return
	}
	of, _ := fields["kind"].(string)
	delete(fields, "kind") // also NetworkPolicy of another project
	r.countPoliciesIn(fields, of)
}

func (r *reader) countPoliciesIn(v any, of string) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			r.countPoliciesIn(item, of)
		}
	case map[string]any:
		if slices.ContainsFunc(compile.Kinds, func(k *compile.Kind) bool { return v["kind"] == k.Name }) {
			r.skipped[fmt.Sprintf("%s (in %s)", v["kind"], of)]++
		}
		for _, value := range v {
			r.countPoliciesIn(value, of)
		}
	}
}

// itemsOf returns the apiVersion and kind of list items that do not have them. ok is false
// if the object is not a list.
func itemsOf(list manifestyaml.Header) (item manifestyaml.Header, ok bool) {
	kind, ok := strings.CutSuffix(list.Kind, "List")
	if kind == "" { // of any kind
		return manifestyaml.Header{}, ok
	}
	return manifestyaml.Header{APIVersion: list.APIVersion, Kind: kind}, ok
}

func (r *reader) items(m manifest, defaults manifestyaml.Header) error {
	items, err := m.doc.Items(defaults)
	if err != nil {
		return m.unread(err, "passed over")
	}
	var errs []error
	for _, item := range items {
		err := r.document(manifest{m.file, item, item})
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// skippedKind names a skipped kind.
func skippedKind(h manifestyaml.Header) string {
	if group, _, grouped := strings.Cut(h.APIVersion, "/"); grouped && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
		return h.Kind + " (" + group + ")"
	}
	return h.Kind
}

// isCustom reports whether an object is of a group that is not built into Kubernetes.
func isCustom(h manifestyaml.Header) bool {
	group, _, grouped := strings.Cut(h.APIVersion, "/")
	return grouped && strings.Contains(group, ".") && (!strings.HasSuffix(group, ".k8s.io") || strings.HasSuffix(group, ".x-k8s.io"))
}

func (r *reader) object(m manifest, k *kind) error {
	o := object{Object: k.new(), kind: k, order: m.file.order, source: source{file: m.file.name, line: m.line(""), doc: m.origin}}
	policy := k.policy != nil
	err := m.decode(k, o.Object)
	unknown := unknownField(k, err)
	if err != nil && unknown == nil {
		return r.refused(m, k.Kind, policy, err)
	}
	if path, err := r.complete(o); err != nil {
		return r.refused(m, k.Kind, policy, m.fault(path, err))
	}
	if isPatch(o) {
		return r.refused(m, k.Kind, policy, m.fault("spec", errors.New("neither a selector nor labels of pods: probably a patch")))
	}
	key := o.key()
	if other, twice := r.objects[key]; twice && other.order == o.order {
		return errors.Join(unknown, r.twice(m, o, other))
	} else if twice {
		r.replaced[key.String()] = true
		if other.order > o.order {
			return unknown
		}
	}
	if p, isPod := o.Object.(*corev1.Pod); isPod && p.Status.Phase != "" {
		o.source.doc = nil // dumps of live clusters have many copies
	}
	r.objects[key] = o
	return unknown
}

// unknownField returns a tolerable error if err is about a field that this program does not
// know of an object that is no policy: a newer version of Kubernetes may have it.
func unknownField(k *kind, err error) error {
	var field strictjson.FieldError
	if k.policy == nil && errors.As(err, &field) {
		return tolerate(err, "the field is ignored")
	}
	return nil
}

func (o object) key() key { return key{o.kind.Kind, o.GetNamespace(), o.GetName()} }

// complete applies the API server's defaults and checks. An error comes with the path of
// the field that is wrong.
func (r *reader) complete(o object) (path string, err error) {
	if o.kind.namespaced && o.GetNamespace() == "" {
		o.SetNamespace(r.namespace)
	}
	if o.GetName() == "" && o.kind.template != "" {
		o.SetName(strings.TrimRight(o.GetGenerateName(), "-."))
	}
	if path, err := wellformed.Object(o.Object, o.kind.Kind, o.kind.namespaced); err != nil {
		return path, err
	}
	if o.GetUID() == "" {
		o.SetUID(types.UID(o.kind.Kind + "/" + o.GetNamespace() + "/" + o.GetName()))
	}
	o.SetResourceVersion("")
	setDefaults(o.Object)
	return "", nil
}

// byKind returns the objects of each kind in order.
func (r *reader) byKind() map[string][]object {
	all := map[string][]object{}
	for key, o := range r.objects {
		all[key.kind] = append(all[key.kind], o)
	}
	for _, objects := range all {
		slices.SortFunc(objects, func(a, b object) int {
			return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
		})
	}
	return all
}

// typed converts objects to their Go type.
func typed[P compile.Object](objects []object) []P {
	var out []P
	for _, o := range objects {
		out = append(out, o.Object.(P))
	}
	return out
}

// cluster returns the objects that were read and adds what is assumed.
func (r *reader) cluster() *Objects {
	all := r.byKind()
	c := &Objects{
		Namespaces:     typed[*corev1.Namespace](all[compile.KindNamespace.Name]),
		Pods:           typed[*corev1.Pod](all[compile.KindPod.Name]),
		Nodes:          typed[*corev1.Node](all[compile.KindNode.Name]),
		CIDRGroups:     typed[*proposed.CIDRGroup](all[compile.KindCIDRGroup.Name]),
		Services:       typed[*corev1.Service](all["Service"]),
		ServiceCIDRs:   typed[*networkingv1.ServiceCIDR](all["ServiceCIDR"]),
		Endpoints:      typed[*Endpoints](all["Endpoints"]),
		EndpointSlices: typed[*discoveryv1.EndpointSlice](all["EndpointSlice"]),
		Selectors:      map[workloads.Ref]*metav1.LabelSelector{},
		Skipped:        skippedKinds(r.skipped),

		Replaced:        slices.Sorted(maps.Keys(r.replaced)),
		CustomResources: r.custom,
		sources:         map[key]source{},
	}
	for _, k := range exposure.Kinds {
		c.Exposing = append(c.Exposing, typed[*unstructured.Unstructured](all[k.Name])...)
	}
	for _, k := range compile.Kinds {
		c.Policies = append(c.Policies, typed[compile.Object](all[k.Name])...)
	}
	for key, o := range r.objects {
		c.sources[key] = o.source
	}
	c.assumePods(workloadsOf(all))
	c.assumeNodes()
	c.assumeNamespaces(r.namespaces())
	c.assumeAddresses(r.placeholders)
	return c
}

// workloadsOf returns the workloads without a controller first, then the controlled ones.
func workloadsOf(byKind map[string][]object) []object {
	var all []object
	for i := range kinds {
		if kinds[i].template != "" {
			all = append(all, byKind[kinds[i].Kind]...)
		}
	}
	slices.SortStableFunc(all, func(a, b object) int {
		controlled := func(o object) int {
			if metav1.GetControllerOfNoCopy(o) != nil {
				return 1
			}
			return 0
		}
		return controlled(a) - controlled(b)
	})
	return all
}

// namespaces returns the names of the namespaces that objects are in.
func (r *reader) namespaces() []string {
	names := map[string]bool{}
	for key := range r.objects {
		if key.namespace != "" {
			names[key.namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
