package main

import (
	"bytes"
	"cmp"
	"embed"
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

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// The states of a cluster that a page can show.
const (
	stateNow     = "now"
	stateBefore  = "before"
	stateAfter   = "after"
	stateChanges = "changes" // after, with what is other than before
)

// enforcedToo is the value of pageQuery.Audited for the states as if audited policies were
// enforced.
const enforcedToo = "enforced"

const (
	// maxShown is how many rows a page has at most, and columns: browsers are slow with more.
	maxShown = 200
	// maxExplained is the same where all reasons are in the page.
	maxExplained = 40
	// maxNodes is how many nodes a graph has at most: with more, nothing can be read.
	maxNodes = 60
)

//go:embed view
var viewFiles embed.FS

func viewFile(name string) string {
	text, err := viewFiles.ReadFile("view/" + name)
	if err != nil {
		panic(err) // it is in the program
	}
	return string(text)
}

var pageTemplates = template.Must(template.New("").Funcs(template.FuncMap{
	"style":  func() template.CSS { return template.CSS(viewFile("style.css")) },
	"script": func() template.JS { return template.JS(viewFile("script.js")) },
}).ParseFS(viewFiles, "view/page.html"))

// pages are what a cluster is shown with.
type pages struct {
	*options
	family reachability.Family
	read   time.Time
	states []state     // now, or before and after
	flows  *flowReader // nil if there are none to show
}

// state is a cluster at one moment.
type state struct {
	name     string
	in       clusterstate.Input
	cluster  *reachability.Cluster
	declared map[string][]reachability.Port // by pods
	named    []reachability.PortRange       // single ports that policies or pods name
}

func newState(name string, in clusterstate.Input) state {
	s := state{name: name, in: in, cluster: reachability.New(in), declared: map[string][]reachability.Port{}}
	for _, pod := range in.Pods {
		for _, c := range pod.Spec.Containers {
			for _, p := range c.Ports {
				if port, err := reachability.ParsePort(fmt.Sprint(p.ContainerPort), cmp.Or(string(p.Protocol), "TCP")); err == nil {
					s.declared[pod.Namespace+"/"+pod.Name] = append(s.declared[pod.Namespace+"/"+pod.Name], port)
				}
			}
		}
	}
	s.named = slices.DeleteFunc(reachability.PortRanges(s.cluster), func(r reachability.PortRange) bool {
		return r.Name != "" || r.First == 0 || r.First != r.Last
	})
	return s
}

// pageQuery is what a page is asked to show, the query of its URL.
type pageQuery struct {
	By                         string // a key of groupings
	FromNamespace, ToNamespace string // empty for all
	Selector                   string
	Port, Protocol             string // an empty port for all
	State                      string
	Audited                    string // enforcedToo, or empty for as they are
	Flows                      string // flowsShown, or empty
}

// encode returns the query of the URL, with more values.
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

// decode returns the query of a URL. What it does not have is as in q, unless it has anything.
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

// port returns the port to show, zero for all.
func (q pageQuery) port() (reachability.Port, error) {
	if q.Port == "" && !strings.EqualFold(q.Protocol, "ICMP") {
		return reachability.Port{}, nil
	}
	return reachability.ParsePort(q.Port, q.Protocol)
}

// grouping returns the side of a pod.
func (q pageQuery) grouping() (func(*corev1.Pod) reachability.Side, error) {
	of, ok := groupings[q.By]
	if !ok {
		return nil, fmt.Errorf("%q: rows and columns must be pod, workload or namespace", q.By)
	}
	return of, nil
}

var protocols = []string{"TCP", "UDP", "SCTP", "ICMP"}

// handler serves the pages. first is what is shown without a query.
func (p *pages) handler(first pageQuery) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, "matrix", p.matrixPage(first.decode(r.URL.Query()), false))
	})
	mux.HandleFunc("GET /cell", func(w http.ResponseWriter, r *http.Request) {
		values := r.URL.Query()
		p.serve(w, "cell", p.cellPage(first.decode(values), values.Get("from"), values.Get("to")))
	})
	for name, kind := range map[string]string{"style.css": "text/css", "script.js": "text/javascript"} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind+"; charset=utf-8")
			_, _ = io.WriteString(w, viewFile(name))
		})
	}
	return mux
}

// serve writes a page, whole or not at all.
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
	page := p.matrixPage(q, true)
	if page.Problem != "" {
		return errors.New(page.Problem)
	}
	return pageTemplates.ExecuteTemplate(w, "matrix", page)
}

// stateOf returns the state to show, and the one to compare it with, if any.
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

// audited returns the state that is asked for: as it is, or as if audited policies were
// enforced.
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

// overview evaluates what a query asks for.
func (p *pages) overview(q pageQuery, s *state, most int) (*reachability.Overview, error) {
	port, err := q.port()
	if err != nil {
		return nil, err
	}
	of, err := q.grouping()
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
	sides := func(namespace string) []reachability.Side {
		var namespaces []string
		if namespace != "" {
			namespaces = []string{namespace}
		}
		pods := slices.DeleteFunc(s.cluster.Pods(p.family, namespaces...), func(e reachability.Endpoint) bool { return !selected[e.Name] })
		return s.cluster.Sides(pods, of)
	}
	from, to := sides(q.FromNamespace), sides(q.ToNamespace)
	switch n := max(len(from), len(to)); {
	case len(from) == 0 || len(to) == 0:
		return nil, fmt.Errorf("no pods to show: no pod there has an address%s", withLabels(q.Selector))
	case n > most:
		return nil, fmt.Errorf("%d %ss are too many to show at once, %d are the most: show namespaces, those of one namespace, or those with some labels", n, q.By, most)
	}
	return s.cluster.Overview(from, to, port, p.family), nil
}

// notes are what is to be said about all answers.
func (p *pages) notes() []string {
	notes := p.notesOf()
	if rules := p.states[len(p.states)-1].cluster.DomainRules(); len(rules) > 0 {
		notes = append(notes, "Not known: what is allowed by domain names, which only agents know: "+shorten(rules)+".")
	}
	return notes
}

// source says what is shown.
func (p *pages) source() string {
	from := "the live cluster"
	if len(p.files) > 0 {
		from = strings.Join(p.files, ", ")
	}
	return fmt.Sprintf("Read from %s at %s.", from, p.read.Format(time.DateTime))
}
