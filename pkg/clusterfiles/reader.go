package clusterfiles

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/apivalidation"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/wellformed"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// reader collects the objects of files.
type reader struct {
	namespace string
	others    []compile.Object // policies, as of Read
	objects   map[key]object
	skipped   map[string]int
	origins   origins
}

// object is an object of the files.
type object struct {
	compile.Object
	kind   *kind
	source source
}

func newReader(namespace string, others ...compile.Object) *reader {
	return &reader{
		namespace: cmp.Or(namespace, metav1.NamespaceDefault),
		others:    others,
		objects:   map[key]object{},
		skipped:   map[string]int{},
		origins:   origins{},
	}
}

// manifest is a document of a file, or an item of a list in it.
type manifest struct {
	file file
	doc  *manifestyaml.Document
	// origin has the lines: it is doc, unless kustomize has made doc of another one. It is
	// nil if that is not known.
	origin *manifestyaml.Document
}

// line returns the line of a field, 0 if that is not known.
func (m manifest) line(path string) int {
	if m.origin == nil {
		return 0
	}
	return m.origin.LineOf(path)
}

func (m manifest) fault(path string, err error) error {
	return manifestyaml.Fault{Line: m.line(path), Err: err}
}

// file reads the objects of a file and returns what is wrong with them.
func (r *reader) file(f file) []error {
	var errs []error
	for d, err := range manifestyaml.Documents(f.data) {
		m := manifest{f, d, d}
		if err == nil && f.built {
			m.origin = r.origins.find(f.name, d)
		}
		if err == nil {
			err = r.document(m)
		}
		if err != nil {
			errs = append(errs, m.locate(err))
		}
	}
	return errs
}

// locate adds the file and the line to the errors that are joined in err.
func (m manifest) locate(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, err := range joined.Unwrap() {
			errs = append(errs, m.locate(err))
		}
		return errors.Join(errs...)
	}
	fault := manifestyaml.AsFault(err)
	if fault.Line > 0 && bytes.Contains(m.file.data, []byte("{{")) {
		fault.Err = fmt.Errorf("%w (the file has {{: of a template, only what it renders can be read)", fault.Err)
	}
	return fmt.Errorf("%s: %w", Position{m.file.name, fault.Line}, fault.Err)
}

// document reads a document or an item of a list.
func (r *reader) document(m manifest) error {
	head, err := m.doc.Header()
	if err != nil {
		return err
	}
	if head.APIVersion == "" || head.Kind == "" {
		return r.headless(m, head)
	}
	if of, ok := itemsOf(head); ok && m.doc.Has("items") {
		return r.items(m, of)
	}
	k, field, err := classify(head)
	if err != nil {
		return m.fault(field, err)
	}
	if k == nil {
		r.skipped[skippedKind(head)]++
		return nil
	}
	return r.object(m, k)
}

// headless treats an object without apiVersion or kind. In a directory there may be files
// that are no manifests.
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
	return m.fault("", fmt.Errorf("%s: missing, not an object of Kubernetes", missing))
}

// itemsOf returns what the items of a list are that do not say it themselves. ok is false
// for what is no list.
func itemsOf(list manifestyaml.Header) (item manifestyaml.Header, ok bool) {
	kind, ok := strings.CutSuffix(list.Kind, "List")
	if kind == "" { // of any kind
		return manifestyaml.Header{}, ok
	}
	return manifestyaml.Header{APIVersion: list.APIVersion, Kind: kind}, ok
}

func (r *reader) items(m manifest, of manifestyaml.Header) error {
	items, err := m.doc.Items(of)
	if err != nil {
		return err
	}
	var errs []error
	for _, item := range items {
		if err := r.document(manifest{m.file, item, item}); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// skippedKind names a kind that is passed over.
func skippedKind(h manifestyaml.Header) string {
	if group, _, grouped := strings.Cut(h.APIVersion, "/"); grouped && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
		return h.Kind + " (" + group + ")"
	}
	return h.Kind
}

func (r *reader) object(m manifest, k *kind) error {
	o := object{Object: k.new(), kind: k, source: source{file: m.file.name, line: m.line(""), doc: m.origin}}
	if err := m.decode(k, o.Object); err != nil {
		return err
	}
	if path, err := r.complete(o); err != nil {
		return m.fault(path, err)
	}
	key := o.key()
	if other, twice := r.objects[key]; twice {
		if apiequality.Semantic.DeepEqual(other.Object, o.Object) {
			return nil
		}
		return m.fault("", fmt.Errorf("%s is already at %s, and differs", key, other.source.at("")))
	}
	if p, isPod := o.Object.(*corev1.Pod); isPod && p.Status.Phase != "" {
		o.source.doc = nil // of a live cluster, which may have many
	}
	r.objects[key] = o
	return nil
}

// decode reads an object, strictly. Of policies, all that the API server would refuse is
// reported.
func (m manifest) decode(k *kind, into compile.Object) error {
	if k.policy == nil {
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
	delete(fields, "status") // which NetworkPolicies have had
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(fields, into, true); err != nil {
		return m.fault("", err)
	}
	return nil
}

// atOrigin moves a fault of a document that kustomize has made to the document it was made of.
func (m manifest) atOrigin(err error) error {
	if err == nil || m.origin == m.doc {
		return err
	}
	return m.fault("", manifestyaml.AsFault(err).Err)
}

func (o object) key() key { return key{o.kind.Kind, o.GetNamespace(), o.GetName()} }

// complete fills in what the API server would and checks what it would. An error comes with
// the path of the field that is wrong.
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

// ofKind returns the objects of a kind in order.
func (r *reader) ofKind(name string) []object {
	var objects []object
	for key := range r.objects {
		if key.kind == name {
			objects = append(objects, r.objects[key])
		}
	}
	slices.SortFunc(objects, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return objects
}

// typed returns objects by their type.
func typed[P compile.Object](objects []object) []P {
	var out []P
	for _, o := range objects {
		out = append(out, o.Object.(P))
	}
	return out
}

// cluster returns what has been read, with what is assumed.
func (r *reader) cluster() *Objects {
	c := &Objects{
		Namespaces: typed[*corev1.Namespace](r.ofKind(compile.KindNamespace.Name)),
		Pods:       typed[*corev1.Pod](r.ofKind(compile.KindPod.Name)),
		Nodes:      typed[*corev1.Node](r.ofKind(compile.KindNode.Name)),
		Services:   typed[*corev1.Service](r.ofKind("Service")),
		Selectors:  map[workloads.Ref]*metav1.LabelSelector{},
		Skipped:    skippedKinds(r.skipped),
		sources:    map[key]source{},
	}
	for _, k := range compile.Kinds {
		c.Policies = append(c.Policies, typed[compile.Object](r.ofKind(k.Name))...)
	}
	for key, o := range r.objects {
		c.sources[key] = o.source
	}
	c.assumePods(r.workloads())
	c.assumeNodes()
	c.assumeNamespaces(r.namespaces())
	c.assumeAddresses(r.others)
	return c
}

// workloads returns the workloads that no other one controls, and behind them the others.
func (r *reader) workloads() []object {
	var all []object
	for i := range kinds {
		if kinds[i].template != "" {
			all = append(all, r.ofKind(kinds[i].Kind)...)
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

// namespaces returns the namespaces that objects are in.
func (r *reader) namespaces() []string {
	names := map[string]bool{}
	for key := range r.objects {
		if key.namespace != "" {
			names[key.namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
