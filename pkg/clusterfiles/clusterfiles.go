// Package clusterfiles reads a cluster from the files that people keep of it: manifests of
// workloads, rendered charts, kustomizations, and what kubectl prints of a live cluster. It
// owns what of these files counts, what the API server would add to them, and what is
// assumed where they say nothing. It leaves the meaning of policies to others.
//
// The rules:
//
//   - A directory is read with the folders below it: files named *.yaml, *.yml and
//     *.json, but hidden ones. A folder with a kustomization is built by kustomize
//     instead, offline. A file that is named may have any name.
//   - Policies of every kind, Namespaces, Nodes, Pods, Services and workloads are read,
//     strictly: an unknown field is an error. Lists are read as their items. Other kinds
//     are passed over and counted, unless they look like policies: that is an error.
//   - An object that is there several times, always the same, counts once. Otherwise it
//     is an error.
//   - An object of a namespace that names none is in the default namespace of the call.
//   - Each workload without pods in the files has one pod, assumed from its template.
//     Each pod without addresses has one assumed address, of each family of the cluster.
//   - Namespaces and Nodes that are only named exist.
package clusterfiles

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// Stdin is the path that stands for the standard input.
const Stdin = "-"

// Objects are the objects of a cluster, each kind ordered by namespace and name. They may
// share parts and must not be changed.
type Objects struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	Services   []*corev1.Service
	Policies   []compile.Object // kind by kind, in the order of compile.Kinds

	// Selectors are those by which workloads know their pods.
	Selectors map[workloads.Ref]*metav1.LabelSelector

	// What the files do not have, and is assumed.
	AssumedPods       []workloads.Ref // the workloads whose pods are
	AssumedAddresses  []netip.Prefix  // the ranges of the addresses that are
	Unaddressed       []string        // Pods that have such addresses, "namespace/name"
	AssumedNamespaces []string
	AssumedNodes      []string

	Skipped []Skipped // what was passed over

	sources map[key]source
}

// Skipped is a kind of object that was passed over, or files without objects.
type Skipped struct {
	// What is the kind with its group, "ServiceMonitor (monitoring.coreos.com)", or why a
	// file is not read.
	What  string
	Count int
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

// Comment is a line of a comment in a file.
type Comment struct {
	Position Position
	Text     string // without the sign that begins it
}

// key names an object among those of all kinds.
type key struct {
	kind, namespace, name string
}

func (k key) String() string {
	if k.namespace == "" {
		return k.kind + " " + k.name
	}
	return k.kind + " " + k.namespace + "/" + k.name
}

// source is where an object comes from.
type source struct {
	file   string
	line   int
	doc    *manifestyaml.Document // nil where only the line is known
	prefix string                 // of the object's fields in the document, for pods of a template
}

func (s source) at(field string) Position {
	if s.doc == nil {
		return Position{s.file, s.line}
	}
	return Position{s.file, s.doc.LineOf(s.prefix + field)}
}

// Position returns where the files have a field of an object, such as
// "spec.ingress[0].ports[1].endPort": the file and the line of the field, or of the last
// part of it that is there. The field of an assumed pod is that of the template. ok is false
// if the object is not from a file. namespace is empty for kinds without one.
func (o *Objects) Position(kind, namespace, name, field string) (p Position, ok bool) {
	s, ok := o.sources[key{kind, namespace, name}]
	if !ok {
		return Position{}, false
	}
	return s.at(field), true
}

// Written reports whether the files have a field of an object, rather than a default of the API.
func (o *Objects) Written(kind, namespace, name, field string) bool {
	s, ok := o.sources[key{kind, namespace, name}]
	return ok && s.doc != nil && s.doc.Has(s.prefix+field)
}

// Comments returns the comments within and directly above an object.
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

// Read reads files and directories. An object that names no namespace is in the given
// one. Others are policies that may come to the cluster: no assumed address is of their
// blocks, either. All errors are joined, each with file and line as far as they are known.
func Read(paths []string, stdin io.Reader, namespace string, others ...compile.Object) (*Objects, error) {
	r := newReader(namespace, others...)
	c := collect(paths, stdin)
	errs := c.errs
	for _, f := range c.files {
		errs = append(errs, r.file(f)...)
	}
	if c.charts > 0 {
		r.skipped["Helm chart (not rendered)"] = c.charts
	}
	if len(errs) == 0 && len(r.objects) == 0 {
		errs = append(errs, fmt.Errorf("no object to read: %w", errNothing(r.skipped)))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r.cluster(), nil
}

// errNothing says what there is instead of objects.
func errNothing(skipped map[string]int) error {
	if len(skipped) == 0 {
		return errors.New("no manifests found")
	}
	return errors.New("only " + list(skippedKinds(skipped)))
}

func skippedKinds(counts map[string]int) []Skipped {
	var kinds []Skipped
	for what, n := range counts {
		kinds = append(kinds, Skipped{what, n})
	}
	slices.SortFunc(kinds, func(a, b Skipped) int { return compareText(a.What, b.What) })
	return kinds
}
