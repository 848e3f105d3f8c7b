package intent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	strictjson "sigs.k8s.io/json"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
)

// outside is the name of all addresses outside of the cluster, as that of a row of the matrix.
const outside = "outside"

// The type of the documents in a file of expectations.
const (
	APIVersion = "kube-network-policies.x-k8s.io/v1alpha1"
	Kind       = "Expectations"
)

// document is one document in a file. Fields that may have several forms are parsed later.
type document struct {
	APIVersion   string `json:"apiVersion"`
	Kind         string `json:"kind"`
	Expectations []item `json:"expectations"`
}

type item struct {
	From     json.RawMessage `json:"from"`
	To       json.RawMessage `json:"to"`
	Port     json.RawMessage `json:"port"`
	Protocol string          `json:"protocol"`
	Expect   string          `json:"expect"`
	Why      string          `json:"why"`
}

// Parse reads a file of expectations, as YAML or JSON. An error has the file, line and
// field of each fault. A file without expectations is an error too.
func Parse(file string, data []byte) ([]Expectation, error) {
	var all []Expectation
	var faults []error
	fault := func(err error) {
		f := manifestyaml.AsFault(err)
		faults = append(faults, fmt.Errorf("%s: %w", place(file, f.Line), f.Err))
	}
	for d, err := range manifestyaml.Documents(data) {
		if err != nil {
			fault(err)
			break
		}
		expectations, errs := parseDocument(d)
		for _, err := range errs {
			fault(err)
		}
		for _, e := range expectations {
			e.File = file
			all = append(all, e)
		}
	}
	if len(all) == 0 && len(faults) == 0 {
		faults = append(faults, fmt.Errorf("%s: there are no expectations", file))
	}
	return all, errors.Join(faults...)
}

// place formats a position.
func place(file string, line int) string {
	if line == 0 {
		return file
	}
	return fmt.Sprintf("%s:%d", file, line)
}

func parseDocument(d *manifestyaml.Document) ([]Expectation, []error) {
	head, err := d.Header()
	if err != nil {
		return nil, []error{err}
	}
	if head.APIVersion != APIVersion || head.Kind != Kind {
		return nil, []error{manifestyaml.Fault{Line: d.Line(), Err: fmt.Errorf("%s %s: must be %s %s", orMissing(head.APIVersion), orMissing(head.Kind), APIVersion, Kind)}}
	}
	var in document
	if err := d.Decode(&in); err != nil {
		return nil, []error{err}
	}
	if len(in.Expectations) == 0 {
		return nil, []error{manifestyaml.Fault{Line: d.LineOf("expectations"), Err: errors.New("expectations: the list is empty")}}
	}
	var all []Expectation
	var faults []error
	for i, item := range in.Expectations {
		r := reader{document: d, path: fmt.Sprintf("expectations[%d]", i)}
		all = append(all, r.expectation(item))
		faults = append(faults, r.faults...)
	}
	return all, faults
}

func orMissing(s string) string {
	if s == "" {
		return "(missing)"
	}
	return s
}

// reader reads one expectation and collects its faults.
type reader struct {
	document *manifestyaml.Document
	path     string
	faults   []error
}

// fail adds a fault of a field of the expectation.
func (r *reader) fail(field string, err error) {
	path := r.path
	if field != "" {
		path += "." + field
	}
	r.faults = append(r.faults, manifestyaml.Fault{Line: r.document.LineOf(path), Err: fmt.Errorf("%s: %w", path, err)})
}

func (r *reader) expectation(in item) Expectation {
	e := Expectation{Field: r.path, Why: in.Why, Line: r.document.LineOf(r.path)}
	e.From, e.To = r.endpoints("from", in.From), r.endpoints("to", in.To)
	if e.From.name == outside && e.To.name == outside {
		r.fail("", errors.New("both sides are outside of the cluster, where no policy applies"))
	}
	switch in.Expect {
	case "allow":
		e.Allow = true
	case "deny":
	case "":
		r.fail("expect", errors.New("is missing: allow or deny"))
	default:
		r.fail("expect", fmt.Errorf("%q: must be allow or deny", in.Expect))
	}
	e.Port = r.port(in)
	return e
}

// port parses port and protocol. The default protocol is TCP.
func (r *reader) port(in item) reachability.Port {
	text := string(in.Port)
	if quoted, ok := unquote(in.Port); ok {
		text = quoted
	} else if text == "null" || strings.ContainsAny(text, "[{.") || text == "true" || text == "false" {
		r.fail("port", fmt.Errorf("%s: must be a number or the name of a container's port", text))
		return reachability.Port{}
	}
	protocol := in.Protocol
	if protocol == "" {
		protocol = "TCP"
	}
	port, err := reachability.ParsePort(text, protocol)
	if err != nil {
		r.fail("", err)
	}
	return port
}

// unquote returns the string that data encodes; ok is false for any other value.
func unquote(data json.RawMessage) (string, bool) {
	var s *string
	err := json.Unmarshal(data, &s)
	if err != nil || s == nil {
		return "", false
	}
	return *s, true
}

// group is a side in its long form.
type group struct {
	Namespace         string                `json:"namespace"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	PodSelector       *metav1.LabelSelector `json:"podSelector"`
	Except            []string              `json:"except"`
}

// endpoints parses a side: a name or a group.
func (r *reader) endpoints(field string, data json.RawMessage) Endpoints {
	e := Endpoints{field: r.path + "." + field, line: r.document.LineOf(r.path + "." + field)}
	if len(data) == 0 || bytes.Equal(data, []byte("null")) {
		r.fail(field, errors.New("is missing"))
		return e
	}
	if text, ok := unquote(data); ok {
		if err := checkName(text); err != nil {
			r.fail(field, err)
		}
		e.name = text
		return e
	}
	if data[0] != '{' {
		r.fail(field, fmt.Errorf("%s: must be a name, or a mapping with namespace or namespaceSelector", data))
		return e
	}
	var g group
	strict, err := strictjson.UnmarshalStrict(data, &g)
	var unknown strictjson.FieldError
	switch {
	case err != nil:
		r.fail(field, plain(err))
		return e
	case len(strict) > 0 && errors.As(strict[0], &unknown):
		// The error's path begins at this mapping, so the full path is put before it. Only the
		// text up to the quoted path describes the fault; the rest would repeat the path.
		// TestParseRejects checks this for the version of sigs.k8s.io/json in go.mod.
		r.fail(field+"."+unknown.FieldPath(), fmt.Errorf("%s", strings.SplitN(strict[0].Error(), " \"", 2)[0]))
		return e
	}
	r.group(&e, field, g)
	return e
}

// plain removes the Go type from a decoding error.
func plain(err error) error {
	var typeErr *json.UnmarshalTypeError
	if errors.As(err, &typeErr) {
		return fmt.Errorf("%s: got %s, want %s", typeErr.Field, typeErr.Value, kindOfType(typeErr.Type.String()))
	}
	return err
}

// kindOfType returns the YAML name for a Go type.
func kindOfType(name string) string {
	switch {
	case name == "string":
		return "string"
	case strings.HasPrefix(name, "[]"):
		return "list"
	}
	return "mapping"
}

func (r *reader) group(e *Endpoints, field string, g group) {
	e.namespace = g.Namespace
	switch {
	case g.Namespace == "" && g.NamespaceSelector == nil:
		r.fail(field, errors.New("namespace or namespaceSelector is missing; {} selects all namespaces"))
	case g.Namespace != "" && g.NamespaceSelector != nil:
		r.fail(field, errors.New("has both namespace and namespaceSelector"))
	}
	e.namespaces = r.selector(field+".namespaceSelector", g.NamespaceSelector)
	e.pods = r.selector(field+".podSelector", g.PodSelector)
	e.except = g.Except
	for i, name := range g.Except {
		err := checkName(name)
		if isAddress(name) {
			err = fmt.Errorf("%q: an address is not in a group of pods", name)
		}
		if err != nil {
			r.fail(fmt.Sprintf("%s.except[%d]", field, i), err)
		}
	}
}

// selector parses a selector. A missing selector selects everything.
func (r *reader) selector(field string, in *metav1.LabelSelector) labels.Selector {
	if in == nil {
		return labels.Everything()
	}
	s, err := metav1.LabelSelectorAsSelector(in)
	if err != nil {
		r.fail(field, err)
		return labels.Nothing()
	}
	return s
}

// checkName returns an error for a name that depends on the namespace of the command line.
func checkName(name string) error {
	if isAddress(name) {
		return nil
	}
	w, err := workloads.Parse(name)
	if err == nil && w.Namespace == "" {
		err = fmt.Errorf("%q: must be namespace/pod, namespace/kind/name such as shop/deploy/web or shop/svc/web, an address, or outside", name)
	}
	return err
}

// isAddress reports whether a name is that of an address, or of all addresses outside.
func isAddress(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil || name == outside
}
