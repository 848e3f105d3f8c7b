package clusterfiles

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	strictjson "sigs.k8s.io/json"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/wellformed"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
	"sigs.k8s.io/kube-network-policies/pkg/tool/apivalidation"
	"sigs.k8s.io/kube-network-policies/pkg/tool/exposure"
	"sigs.k8s.io/kube-network-policies/pkg/tool/workloads"
)

// reader collects the objects in files.
type reader struct {
	namespace     string
	otherPolicies []compile.Object // see Read
	objects       map[key]object
	skipped       map[string]int
	custom        bool // whether some of them are custom resources
	replaced      map[string]bool
	origins       origins
}

type object struct {
	compile.Object
	kind   *kind
	source source
	order  int // of the file
}

func newReader(namespace string, otherPolicies ...compile.Object) *reader {
	return &reader{
		namespace:     cmp.Or(namespace, metav1.NamespaceDefault),
		otherPolicies: otherPolicies,
		objects:       map[key]object{},
		skipped:       map[string]int{},
		replaced:      map[string]bool{},
		origins:       origins{},
	}
}

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

// file reads the objects of a file and returns its faults.
func (r *reader) file(f file) []error {
	var errs []error
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

// unread returns the fault of something that is no manifest. It is tolerable in a file that the
// user has not named, unless that may have a policy.
func (m manifest) unread(err error, then string) error {
	if m.file.named || !m.file.templated() && policyKind.Match(m.file.data) {
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
		r.custom = r.custom || isCustom(head)
		return nil
	}
	return r.object(m, k)
}

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
	policy := m.file.named || m.doc.Has("spec.podSelector") || slices.ContainsFunc(compile.Kinds, func(k *compile.Kind) bool { return k.Name == head.Kind })
	return r.refused(m, head.Kind, policy, m.fault("", fmt.Errorf("%s: missing, not an object of Kubernetes", missing)))
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

// twice compares an object with another one of its name that was read before. Trees have
// several variants of an installation.
func (r *reader) twice(m manifest, o, other object) error {
	key := o.key()
	var err error
	switch {
	case other.kind != o.kind:
		err = m.fault("apiVersion", fmt.Errorf("%s of version %s is already at %s as %s, and is the same object: remove one of them", key, o.kind.Version, other.source.at(""), other.kind.Version))
	case alike(other, o):
		return nil
	default:
		err = m.fault("", fmt.Errorf("%s is already at %s, and differs", key, other.source.at("")))
	}
	if o.kind.policy != nil {
		return err
	}
	return tolerate(err, "the first one counts")
}

// isPatch reports whether a workload has nothing that tells its pods. API servers refuse it, and
// trees have such files beside kustomizations, also beside those that no other one refers to.
func isPatch(o object) bool {
	pod, ok := workloads.PodOf(o.Object)
	_, selects := workloads.SelectorOf(o.Object)
	return ok && !selects && o.kind.Group == appsv1.GroupName && len(pod.Labels) == 0
}

// alike reports whether policies cannot tell two objects of one name apart. What the containers of
// a pod run does not matter: variants of an installation differ in that.
func alike(a, b object) bool {
	pod, ok := podSeen(a)
	other, both := podSeen(b)
	if !ok || !both {
		return apiequality.Semantic.DeepEqual(a.Object, b.Object)
	}
	selector, _ := workloads.SelectorOf(a.Object)
	otherSelector, _ := workloads.SelectorOf(b.Object)
	return apiequality.Semantic.DeepEqual(pod, other) && apiequality.Semantic.DeepEqual(selector, otherSelector)
}

// podSeen returns what policies see of a workload's pod.
func podSeen(o object) (*corev1.Pod, bool) {
	pod, ok := workloads.PodOf(o.Object)
	if !ok {
		return nil, false
	}
	pod = pod.DeepCopy()
	pod.Spec.Volumes = nil
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i, c := range containers {
			containers[i] = corev1.Container{Name: c.Name, Ports: c.Ports, RestartPolicy: c.RestartPolicy}
		}
	}
	return pod, true
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
	c.assumeAddresses(r.otherPolicies)
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
