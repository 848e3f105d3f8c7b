package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
)

type viewOptions struct {
	agentOptions
	records  []string
	traffic  traffic
	by       string
	selector string
	apply    string
	output   string
}

func newView(o *options) *cobra.Command {
	v := &viewOptions{agentOptions: agentOptions{options: o}}
	cmd := &cobra.Command{
		Use:   "view [-o html]",
		Short: "Show a page with a summary, the matrix, the graph and the reasons",
		Long: `Serve a page to look at: what is open to the world and what no policy limits, the
findings of check, which workloads reach which, as a matrix and as a graph, and for each
pair the reasons. Rows and columns are those of the command matrix: workloads, or
namespaces if there are more than 40, or pods, all or those of namespaces and labels.

With --apply there are three states to choose from: the policies before, those after
the manifests are applied as "kubectl apply" would, and what changes.

The page is served to this machine alone, at a random port of the loopback address,
and below a path that only the printed URL has. The cluster is read once, at the start,
and flows as long as they are shown.

Where policies are audited, the page also shows the matrix as if they were enforced.

Flows that agents have recorded can be shown over the matrix, and are read again every few
seconds: those of a live cluster, with the rights of the command flows, or those of
--records.

With -o html one file is printed that needs nothing else, to keep or to attach to a
ticket: the matrix of -n, -l, --by and --port, the graph, and the reasons of each pair.
Where there are more than 2,500, reasons need JavaScript. With --apply, it marks what
changes. The flows of --records are in it; agents are not asked.

The exit code is 0, or 2 when there is no answer.`,
		Example: `  kubectl-netpol view
  kubectl-netpol view -f ./manifests --apply policy.yaml
  kubectl-netpol view -n shop -o html > shop.html`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.traffic.addFlags(cmd.Flags())
	cmd.Flags().Lookup("port").Usage = "the only port to show at first: a number, or a name that is looked up on each destination pod; empty shows all ports"
	cmd.Flags().StringVar(&v.by, "by", "", "what rows and columns are at first: pod, workload or namespace; empty takes workloads, or namespaces if there are more than 40")
	cmd.Flags().StringVarP(&v.selector, "selector", "l", "", "show only pods with these labels at first, as in kubectl get -l")
	cmd.Flags().StringVar(&v.apply, "apply", "", "manifests to compare with: a file, a directory or a kustomization, as for -f; empty compares with nothing")
	cmd.Flags().StringVarP(&v.output, "output", "o", "page", "page (serve it) or html (print one file)")
	cmd.Flags().StringArrayVar(&v.records, "records", nil, "file of flow records to show instead of asking the agents: lines that flows -o json prints; may be repeated")
	v.addAgentFlags(cmd.Flags())
	return cmd
}

func (v *viewOptions) run(cmd *cobra.Command) error {
	if err := checkOutput("view", v.output); err != nil {
		return err
	}
	if slices.Contains(v.records, clusterfiles.Stdin) {
		return errors.New("--records=-: standard input can be read once, and flows are read again and again")
	}
	if err := v.checkAgents(cmd, v.whyNoAgents()); err != nil {
		return err
	}
	p, err := v.pages(cmd)
	if err != nil {
		return err
	}
	q := pageQuery{
		By: v.by, FromNamespace: v.namespace, ToNamespace: v.namespace, Selector: v.selector,
		Port: v.traffic.port, Protocol: v.traffic.protocol, State: p.stateNames()[len(p.stateNames())-1],
	}
	if len(v.records) > 0 {
		if _, _, err := p.flows.latest(); err != nil {
			return err
		}
	}
	if v.output == "html" {
		if len(v.records) > 0 {
			q.Flows = flowsShown
		}
		return p.printFile(cmd.OutOrStdout(), q)
	}
	return serveView(cmd, p, q)
}

// whyNoAgents names the flag that keeps agents from being asked, or returns "".
func (v *viewOptions) whyNoAgents() string {
	switch {
	case len(v.records) > 0:
		return "with --records"
	case len(v.files) > 0:
		return "with --filename"
	case v.output == "html":
		return "with --output=html"
	}
	return ""
}

// pages reads everything that the pages show.
func (v *viewOptions) pages(cmd *cobra.Command) (*pages, error) {
	family, err := parseFamily(v.traffic.family)
	if err != nil {
		return nil, err
	}
	var changes *clusterfiles.Objects
	if v.apply != "" {
		if changes, err = v.readChanges(cmd); err != nil {
			return nil, err
		}
	}
	in, err := v.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	if err := v.checkNamespace(in.Namespaces); err != nil {
		return nil, err
	}
	p := &pages{
		options: v.options, family: family, read: time.Now(), applied: v.apply, flows: v.flowReader(cmd.Context()),
	}
	if changes == nil {
		p.states = []state{p.newState(stateNow, in, reachability.WithNewPods(in))}
	} else {
		services := servicesIn(changes)
		v.services.add(&services)
		v.exposing = replacing(v.exposing, changes.Exposing)
		before, after := reachability.WithAddresses(in, applied(in, v.input(changes), v.toBePlaced(changes, len(v.files) == 0)))
		newBefore, newAfter := reachability.WithNewPodsOfBoth(before, after)
		p.states = []state{p.newState(stateBefore, before, newBefore), p.newState(stateAfter, after, newAfter)}
	}
	last := &p.states[len(p.states)-1]
	v.findings = v.findingsOf(last.cluster)
	p.checked = v.checkState(last)
	v.printCaveats(cmd.ErrOrStderr())
	return p, nil
}

// checkState returns the findings of check about a state. Comments and fields are those of the
// files that were read before manifests were applied.
func (v *viewOptions) checkState(s *state) []finding {
	r := newReport(v.lintInput(s.in), v.objects, nil)
	if v.namespace != "" {
		r.keep(v.namespace)
	}
	return r.Findings
}

// readChanges reads the manifests of --apply.
func (v *viewOptions) readChanges(cmd *cobra.Command) (*clusterfiles.Objects, error) {
	if v.apply == "-" && slices.Contains(v.files, "-") {
		return nil, errors.New("--apply=-: the standard input is that of --filename already")
	}
	objects, err := v.readWith(v.reading(), []string{v.apply}, cmd.InOrStdin())
	if err != nil {
		return nil, fmt.Errorf("--apply=%s: %w", v.apply, err)
	}
	v.placeholders = len(objects.Unaddressed)
	return objects, nil
}

// serveView serves the pages until the command is interrupted.
func serveView(cmd *cobra.Command, p *pages, first pageQuery) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	token := rand.Text()
	server := &http.Server{
		Handler:           guard(listener.Addr().String(), token, p.handler(first)),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    1 << 16,
	}
	fmt.Fprintf(cmd.OutOrStdout(), "http://%s/%s/\n", listener.Addr(), token)
	fmt.Fprintln(cmd.ErrOrStderr(), "Serving the page at this URL; interrupt to end")
	stop := context.AfterFunc(cmd.Context(), func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// guard passes requests to next if their path begins with the token and their host is the
// server's address. Another site in the user's browser knows neither, even if its name
// resolves to this machine (DNS rebinding).
func guard(addr, token string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Referrer-Policy", "no-referrer")
		w.Header().Set("Cache-Control", "no-store")
		given, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if r.Host != addr || subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
			http.NotFound(w, r)
			return
		}
		http.StripPrefix("/"+token, next).ServeHTTP(w, r)
	})
}
