package main

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// The states of a cluster that a page can show.
const (
	stateNow     = "now"
	stateBefore  = "before"
	stateAfter   = "after"
	stateChanges = "changes" // after, compared with before
)

// enforcedToo is the value of pageQuery.Audited that shows each state as if audited
// policies were enforced.
const enforcedToo = "enforced"

const (
	// maxShown limits the rows and the columns of a page, and the nodes of its graph, because
	// browsers are slow with more.
	maxShown = 200
	// maxNamespaces is maxShown of namespaces, which nothing shows in fewer rows.
	maxNamespaces = 500
	// maxAtOnce limits the workloads of a page that was not asked for a grouping. With more, it
	// shows namespaces.
	maxAtOnce = 40
	// maxPlain limits the cells of a file that can be read without scripts. With more, reasons are
	// packed.
	maxPlain = 50 * 50
)

//go:embed view
var viewFiles embed.FS

func viewFile(name string) string {
	text, err := viewFiles.ReadFile("view/" + name)
	if err != nil {
		panic(err) // the template is part of the program
	}
	return string(text)
}

var pageTemplates = template.Must(template.New("").Funcs(template.FuncMap{
	"style":  func() template.CSS { return template.CSS(viewFile("style.css")) },
	"script": func(name string) template.JS { return template.JS(viewFile(name)) },
	"policy": filePolicy,
	"firstLine": func(text string) string {
		line, _, _ := strings.Cut(text, "\n")
		return line
	},
}).ParseFS(viewFiles, "view/page.html"))

// filePolicy is the content security policy of a page that is one file: only its own style and
// scripts, and no requests.
func filePolicy() string {
	source := func(name string) string {
		sum := sha256.Sum256([]byte(viewFile(name)))
		return " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	return "default-src 'none'; base-uri 'none'; style-src" + source("style.css") + "; script-src" + source("dagre.js") + source("graph.js") + source("script.js")
}

// pages has everything needed to show a cluster.
type pages struct {
	*options
	family reachability.Family
	read   time.Time
	states []state // now, or before and after
	// applied is what --apply names, the difference of the two states.
	applied string
	flows   *flowReader // nil if there are none to show
	checked []finding   // of check, in the last state
}

// state is a cluster at one moment.
type state struct {
	name     string
	in       clusterstate.Input
	cluster  *reachability.Cluster // in, and pods that may come
	outside  reachability.Side
	declared map[string][]policy.NamedPort // by pod
	named    []reachability.PortRange      // single ports that policies or pods name
}

// newState returns the state of a cluster. withNewPods is in with pods that may come.
func (p *pages) newState(name string, in, withNewPods clusterstate.Input) state {
	s := state{name: name, in: in, cluster: p.cluster(withNewPods), declared: map[string][]policy.NamedPort{}}
	for _, pod := range in.Pods {
		s.declared[pod.Namespace+"/"+pod.Name] = reachability.DeclaredPorts(pod)
	}
	s.outside = s.cluster.Outside(p.family, p.services.translated())
	s.named = slices.DeleteFunc(reachability.PortRanges(s.cluster), func(r reachability.PortRange) bool {
		return r.Name != "" || r.First == 0 || r.First != r.Last
	})
	return s
}

// pageQuery says what a page shows. It is the query of the URL.
type pageQuery struct {
	By                         string // a key of groupings, or empty for workloads or, if there are many, namespaces
	FromNamespace, ToNamespace string // empty for all
	Selector                   string
	Port, Protocol             string // an empty port for all
	State                      string
	Audited                    string // enforcedToo, or "" to show them as they are
	Flows                      string // flowsShown, or ""
}

// encode returns the query of the URL with more values.
func (q pageQuery) encode(more ...string) string {
	values := url.Values{}
	for key, value := range map[string]string{
		"by": q.By, "from-namespace": q.FromNamespace, "to-namespace": q.ToNamespace,
		"selector": q.Selector, "port": q.Port, "protocol": q.Protocol, "state": q.State,
		"audited": q.Audited, "flows": q.Flows,
	} {
		if value != "" {
			values.Set(key, value)
		}
	}
	for i := 0; i < len(more); i += 2 {
		values.Set(more[i], more[i+1])
	}
	return values.Encode()
}

// decode parses the query of a URL. An empty query is q. Otherwise the grouping, the
// protocol and the state default to those of q.
func (q pageQuery) decode(values url.Values) pageQuery {
	if len(values) == 0 {
		return q
	}
	return pageQuery{
		By: cmp.Or(values.Get("by"), q.By), FromNamespace: values.Get("from-namespace"), ToNamespace: values.Get("to-namespace"),
		Selector: strings.TrimSpace(values.Get("selector")), Port: strings.TrimSpace(values.Get("port")),
		Protocol: cmp.Or(values.Get("protocol"), q.Protocol), State: cmp.Or(values.Get("state"), q.State),
		Audited: values.Get("audited"), Flows: values.Get("flows"),
	}
}

// port returns the port to show, or zero for all.
func (q pageQuery) port() (reachability.Port, error) {
	if q.Port == "" && !strings.EqualFold(q.Protocol, "ICMP") {
		return reachability.Port{}, nil
	}
	return reachability.ParsePort(q.Port, q.Protocol)
}

// grouping returns the function that maps a pod to its side.
func (q pageQuery) grouping() (func(*corev1.Pod) reachability.Side, error) {
	sideOf, ok := groupings[cmp.Or(q.By, "workload")]
	if !ok {
		return nil, fmt.Errorf("%q: rows and columns must be pod, workload or namespace", q.By)
	}
	return sideOf, nil
}

var protocols = []string{"TCP", "UDP", "SCTP", "ICMP"}

// handler serves the pages. first is the query of a URL without one.
func (p *pages) handler(first pageQuery) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, "matrix", p.matrixPage(first.decode(r.URL.Query()), false))
	})
	mux.HandleFunc("GET /cell", func(w http.ResponseWriter, r *http.Request) {
		values := r.URL.Query()
		p.serve(w, "cell", p.cellPage(first.decode(values), values.Get("from"), values.Get("to")))
	})
	for name, kind := range map[string]string{"style.css": "text/css", "script.js": "text/javascript", "graph.js": "text/javascript", "dagre.js": "text/javascript"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
			_, _ = io.WriteString(w, viewFile(name))
		})
	}
	return mux
}

// serve writes a complete page or an error.
func (p *pages) serve(w http.ResponseWriter, name string, data any) {
	var page bytes.Buffer
	if err := pageTemplates.ExecuteTemplate(&page, name, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = page.WriteTo(w)
}

// printFile writes the matrix with all reasons as one file.
func (p *pages) printFile(w io.Writer, q pageQuery) error {
	done := p.progress("Collecting reasons")
	page := p.matrixPage(q, true)
	done()
	if page.Problem != "" {
		return errors.New(page.Problem)
	}
	out := bufio.NewWriter(w) // templates write in small pieces
	if err := pageTemplates.ExecuteTemplate(out, "matrix", page); err != nil {
		return err
	}
	return out.Flush()
}

// stateOf returns the state to show and, if any, the state to compare it with.
func (p *pages) stateOf(q pageQuery) (shown, before *state, err error) {
	if q.State == stateChanges && len(p.states) == 2 {
		return p.states[1].audited(q), p.states[0].audited(q), nil
	}
	i := slices.IndexFunc(p.states, func(s state) bool { return s.name == q.State })
	if i < 0 {
		return nil, nil, fmt.Errorf("state %q: must be one of %s", q.State, strings.Join(p.stateNames(), ", "))
	}
	if q.Audited == enforcedToo {
		return p.states[i].audited(q), &p.states[i], nil
	}
	return &p.states[i], nil, nil
}

// audited returns the state as the query asks: as it is, or with audited policies enforced.
func (s *state) audited(q pageQuery) *state {
	if q.Audited != enforcedToo {
		return s
	}
	enforced := *s
	enforced.name += " if audited policies were enforced"
	enforced.cluster = ifEnforced(s.cluster)
	return &enforced
}

// audits reports whether any policy is audited.
func (p *pages) audits() bool {
	return slices.ContainsFunc(p.states, func(s state) bool { return s.cluster.IfEnforced() != nil })
}

// stateNames are the states to choose from.
func (p *pages) stateNames() []string {
	if len(p.states) == 1 {
		return []string{stateNow}
	}
	return []string{stateBefore, stateAfter, stateChanges}
}

// sides returns the rows or columns of a namespace, or of all if that is empty: what has pods
// there with the labels, and if there is any, what is not in the cluster: the addresses outside, and
// pods that may come, unless they are selected by labels.
func (p *pages) sides(s *state, q pageQuery, namespace string) ([]reachability.Side, error) {
	sideOf, err := q.grouping()
	if err != nil {
		return nil, err
	}
	selector, err := labels.Parse(q.Selector)
	if err != nil {
		return nil, fmt.Errorf("labels %q: %w", q.Selector, err)
	}
	selected := map[string]bool{}
	for _, pod := range s.in.Pods {
		selected[pod.Namespace+"/"+pod.Name] = selector.Matches(labels.Set(pod.Labels))
	}
	var namespaces []string
	if namespace != "" {
		namespaces = []string{namespace}
	}
	var pods, may []reachability.Endpoint
	for _, e := range s.cluster.Pods(p.family, namespaces...) {
		shown, exists := selected[e.Name]
		switch {
		case shown:
			pods = append(pods, e)
		case !exists && q.By != "namespace" && !strings.HasPrefix(e.Name, reachability.NewNamespace+"/"):
			may = append(may, e)
		}
	}
	if len(pods) == 0 {
		return nil, noPods(len(selected), "", q.Selector)
	}
	var sides []reachability.Side
	if len(s.outside.Members) > 0 { // first, where it is seen
		sides = append(sides, s.outside)
	}
	var others []reachability.Side
	if selector.Empty() {
		pods = append(pods, may...)
		others = s.cluster.Sides(s.cluster.Pods(p.family, reachability.NewNamespace), sideOf)
	}
	return slices.Concat(sides, s.cluster.Sides(pods, sideOf), others), nil
}

// settle returns the query with a grouping, which is by workload unless there are many.
func (p *pages) settle(s *state, q pageQuery) pageQuery {
	if q.By != "" {
		return q
	}
	q.By = "workload"
	if p.workloads(s, q) > maxAtOnce {
		q.By = "namespace"
	}
	return q
}

// workloads returns how many workloads a query is about, at most, as rows or columns.
func (p *pages) workloads(s *state, q pageQuery) int {
	q.By = "workload"
	most := 0
	for _, namespace := range []string{q.FromNamespace, q.ToNamespace} {
		sides, err := p.sides(s, q, namespace)
		if err != nil {
			return 0 // whoever asks for the sides says why
		}
		most = max(most, len(slices.DeleteFunc(sides, isNewOrOutside)))
	}
	return most
}

// isNewOrOutside reports whether a side is not in the cluster.
func isNewOrOutside(s reachability.Side) bool {
	return s.Outside || s.Namespace == reachability.NewNamespace || reachability.IsNewName(s.String())
}

// overview evaluates what a query asks for.
func (p *pages) overview(q pageQuery, s *state) (*reachability.Overview, error) {
	port, err := q.port()
	if err != nil {
		return nil, err
	}
	from, err := p.sides(s, q, q.FromNamespace)
	if err != nil {
		return nil, err
	}
	to, err := p.sides(s, q, q.ToNamespace)
	if err != nil {
		return nil, err
	}
	shown := func(sides []reachability.Side) int {
		return len(slices.DeleteFunc(slices.Clone(sides), isNewOrOutside))
	}
	most, instead := maxShown, "namespaces, those of one namespace"
	if q.By == "namespace" {
		most, instead = maxNamespaces, "those of one namespace"
	}
	if n := max(shown(from), shown(to)); n > most {
		return nil, fmt.Errorf("%d %ss are too many to show at once, %d are the most: show %s, or those with some labels", n, q.By, most, instead)
	}
	return s.cluster.Overview(from, to, port, p.family), nil
}

// notes apply to all answers. What is not enforced as written is among the findings.
func (p *pages) notes() []string {
	var notes []string
	for _, limit := range p.limits {
		notes = append(notes, "Not read: "+limit+".")
	}
	if rules := p.states[len(p.states)-1].cluster.DomainRules(); len(rules) > 0 {
		notes = append(notes, "Not known: what is allowed by domain names, which only agents know: "+shorten(rules)+".")
	}
	return notes
}

// source says where the shown cluster is from.
func (p *pages) source() string {
	from := "the live cluster"
	if len(p.files) > 0 {
		from = strings.Join(p.files, ", ")
	}
	source := fmt.Sprintf("Read from %s at %s.", from, p.read.Format(time.DateTime))
	if p.applied != "" {
		source += " Before: as read. After: with " + p.applied + " applied."
	}
	return source
}
