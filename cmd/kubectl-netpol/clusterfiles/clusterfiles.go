// Package clusterfiles reads a cluster from files: manifests of workloads, rendered charts,
// kustomizations, and what kubectl prints of a live cluster. It decides which objects
// count, applies the API server's defaults, and assumes what the files leave out. It does
// not interpret policies.
//
// The rules:
//
//   - A directory is read recursively: files named *.yaml, *.yml and *.json, except hidden
//     and excluded ones. A folder with a kustomization is built by kustomize instead,
//     offline. A file that is given by path may have any name. A chart that is given by path
//     is rendered; charts in directories are passed over.
//   - Policies of every kind are decoded strictly: anything an API server would refuse is an
//     error, and so is a kind that looks like a policy. Whatever else is wrong with the files
//     of a directory is a warning, and the rest is read: files that are no manifests,
//     templates, kustomizations that cannot be built, unknown fields and versions of other
//     kinds. Options.Strict makes these errors.
//   - Lists are read as their items. Other kinds are skipped and counted.
//   - Identical copies of an object count once. A copy from a later path replaces that of an
//     earlier one. Of copies below one path that differ, the first counts, with a warning;
//     policies that differ are an error.
//   - A namespaced object without a namespace is in the default namespace of the call.
//   - Each workload without pods in the files gets one pod, assumed from its template.
//     Each pod without addresses gets a placeholder of each family of the cluster.
//   - Namespaces and Nodes that are only mentioned exist.
package clusterfiles

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/helmchart"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// Stdin is the path that means standard input.
const Stdin = "-"

// Endpoints are the predecessors of EndpointSlices.
//
//lint:ignore SA1019 files of clusters have them, those of Services without a selector above all
type Endpoints = corev1.Endpoints

// Objects are the objects of a cluster, each kind ordered by namespace and name. They may
// share parts and must not be changed.
type Objects struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	CIDRGroups []*proposed.CIDRGroup
	Services   []*corev1.Service
	// ServiceCIDRs are the ranges that cluster IPs are from.
	ServiceCIDRs []*networkingv1.ServiceCIDR
	// Endpoints and EndpointSlices are what stands behind Services.
	Endpoints      []*Endpoints
	EndpointSlices []*discoveryv1.EndpointSlice
	Exposing       []*unstructured.Unstructured // of exposure.Kinds
	Policies       []compile.Object             // kind by kind, in the order of compile.Kinds

	// Selectors are the pod selectors of the workloads, and Workloads their labels.
	Selectors map[workloads.Ref]*metav1.LabelSelector
	Workloads []workloads.Labels

	// What the files lack and the reader assumes.
	AssumedPods       []workloads.Ref // workloads whose pods are assumed
	Unaddressed       []string        // pods with placeholders as addresses, "namespace/name"
	AssumedNamespaces []string
	AssumedNodes      []string

	Skipped []Skipped // kinds and files that were not read
	// Warnings say what is wrong with the files, with file and line, in the order of the files.
	Warnings []string
	// Unmatched are the patterns of Options.Exclude that match nothing.
	Unmatched []string
	// Replaced are the objects that a later path replaced, "Kind namespace/name", sorted.
	Replaced []string
	// CustomResources says that some of that are objects whose controllers may create pods.
	CustomResources bool

	sources map[key]source
}

// Skipped is a kind of object, or a kind of file, that was not read.
type Skipped struct {
	// What is the kind with its group, "ServiceMonitor (monitoring.coreos.com)", or why a file
	// was not read.
	What  string
	Count int
}

// String returns the number and what they are, "2 ConfigMaps".
func (s Skipped) String() string {
	head, rest := s.What, ""
	for _, after := range []string{" (", " without ", " that "} {
		if i := strings.Index(head, after); i > 0 {
			head, rest = s.What[:i], s.What[i:]
		}
	}
	return words.Count(s.Count, head, plural(head)) + rest
}

// Position is a place in a file. Line counts from 1; 0 is the file as a whole.
type Position struct {
	File string `json:"file"`
	Line int    `json:"line,omitempty"`
}

// String returns "file:line".
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Comment is one line of a comment in a file.
type Comment struct {
	Position Position
	Text     string // without the comment sign
}

// key identifies an object among those of all kinds.
type key struct {
	kind, namespace, name string
}

func (k key) String() string {
	if k.namespace == "" {
		return k.kind + " " + k.name
	}
	return k.kind + " " + k.namespace + "/" + k.name
}

// source is where an object was read.
type source struct {
	file   string
	line   int
	doc    *manifestyaml.Document // nil where only the line is known
	prefix string                 // path of the object in the document, such as that of a pod template
}

func (s source) at(field string) Position {
	if s.doc == nil {
		return Position{s.file, s.line}
	}
	return Position{s.file, s.doc.LineOf(s.prefix + field)}
}

// Position returns the file and line of a field of an object, such as
// "spec.ingress[0].ports[1].endPort", or of its innermost parent that the file has. A field
// of an assumed pod is found in the template. ok is false if the object is not from a file.
// namespace is empty for cluster-scoped kinds.
func (o *Objects) Position(kind, namespace, name, field string) (p Position, ok bool) {
	s, ok := o.sources[key{kind, namespace, name}]
	if !ok {
		return Position{}, false
	}
	return s.at(field), true
}

// Written reports whether a file sets a field of an object, rather than an API default.
func (o *Objects) Written(kind, namespace, name, field string) bool {
	s, ok := o.sources[key{kind, namespace, name}]
	return ok && s.doc != nil && s.doc.Has(s.prefix+field)
}

// Comments returns the comments inside an object and directly above it.
func (o *Objects) Comments(kind, namespace, name string) []Comment {
	s, ok := o.sources[key{kind, namespace, name}]
	if !ok || s.doc == nil {
		return nil
	}
	var comments []Comment
	for _, c := range s.doc.Comments() {
		comments = append(comments, Comment{Position{s.file, c.Line}, c.Text})
	}
	return comments
}

// Options say how files are read.
type Options struct {
	Namespace string // of objects that name none; empty is default
	Strict    bool   // whether what would be a warning is an error
	// Exclude are patterns of files and folders that are left out of directories. They have the
	// syntax of path.Match and match the name or, if they contain a slash, the path below the
	// directory.
	Exclude []string
	Values  helmchart.Values // of charts that are paths
	// OnlyOthers permits files whose objects are all of kinds that are not read.
	OnlyOthers bool
	// Placeholders is the number of placeholders for addresses that pods of other files have.
	Placeholders int
}

// Read reads files and directories. All errors are joined; each has its file and line as far
// as they are known.
func Read(paths []string, stdin io.Reader, options Options) (*Objects, error) {
	o, errs := readAll(paths, stdin, options)
	o.Warnings, errs = o.warnings(errs, options.Strict)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return o, nil
}

// ReadValid reads like Read, without the objects that API servers refuse, which it returns
// apart.
func ReadValid(paths []string, stdin io.Reader, options Options) (*Objects, []*Refused, error) {
	o, errs := readAll(paths, stdin, options)
	var refused []*Refused
	errs = slices.DeleteFunc(errs, func(err error) bool {
		if t, ok := err.(*tolerable); ok {
			err = t.err
		}
		r, ok := err.(*Refused)
		if ok {
			refused = append(refused, r)
		}
		return ok
	})
	o.Warnings, errs = o.warnings(errs, options.Strict)
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	return o, refused, nil
}

func readAll(paths []string, stdin io.Reader, options Options) (*Objects, []error) {
	r := newReader(options.Namespace, options.Placeholders)
	c := collect(paths, stdin, options)
	errs := c.errs
	for _, f := range c.files {
		errs = append(errs, r.file(f)...)
	}
	if c.charts > 0 {
		r.skipped["Helm chart (--helm renders one)"] = c.charts
	}
	if len(errs) == 0 && len(r.objects) == 0 && !(options.OnlyOthers && len(r.skipped) > 0) {
		errs = append(errs, fmt.Errorf("no object to read: %w", errNothing(r.skipped)))
	}
	o := r.cluster()
	for _, pattern := range options.Exclude {
		if !c.excludes[pattern] && len(errs) == 0 {
			o.Unmatched = append(o.Unmatched, pattern)
		}
	}
	return o, errs
}

// tolerable is a fault that does not keep the rest from being read.
type tolerable struct {
	err  error
	then string // what is done about it
}

func (t *tolerable) Error() string { return t.err.Error() }
func (t *tolerable) Unwrap() error { return t.err }

// tolerate returns the errors that are joined in err as tolerable ones.
func tolerate(err error, then string) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, err := range joined.Unwrap() {
			errs = append(errs, tolerate(err, then))
		}
		return errors.Join(errs...)
	}
	if err == nil {
		return nil
	}
	return &tolerable{err, then}
}

// warnings returns the texts of the tolerable errors unless strict is set, and the other
// errors. If they are why there is no object at all, they are errors, too.
func (o *Objects) warnings(errs []error, strict bool) (texts []string, others []error) {
	strict = strict || len(o.sources) == 0
	said := map[string]bool{} // a base has its faults again in each overlay
	for _, err := range errs {
		if said[err.Error()] {
			continue
		}
		said[err.Error()] = true
		if t, ok := err.(*tolerable); ok && !strict {
			texts = append(texts, t.Error()+": "+t.then)
		} else {
			others = append(others, err)
		}
	}
	return texts, others
}

// errNothing explains why no object was read.
func errNothing(skipped map[string]int) error {
	if len(skipped) == 0 {
		return errors.New("no manifests found")
	}
	return errors.New("only " + join(skippedKinds(skipped), ", "))
}

func skippedKinds(counts map[string]int) []Skipped {
	var kinds []Skipped
	for what, n := range counts {
		kinds = append(kinds, Skipped{what, n})
	}
	slices.SortFunc(kinds, func(a, b Skipped) int { return compareText(a.What, b.What) })
	return kinds
}
