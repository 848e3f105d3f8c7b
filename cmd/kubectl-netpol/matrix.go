package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

type matrixOptions struct {
	*options
	traffic  traffic
	from, to []string
	by       string
	selector string
	output   string
	color    string
}

// groupings are what rows and columns can be.
var groupings = map[string]func(*corev1.Pod) reachability.Side{"pod": ofPod, "workload": ofWorkload, "namespace": ofNamespace}

func newMatrix(o *options) *cobra.Command {
	m := &matrixOptions{options: o}
	cmd := &cobra.Command{
		Use:   "matrix [--port PORT] [--protocol PROTOCOL]",
		Short: "Show which workloads reach which, and at which ports",
		Long: `Show for every pair of workloads the ports at which the first may connect to the
second.

Rows are clients, columns servers: all workloads, or those of -n and -l. --by takes
pods or namespaces instead, --from and --to take what they name: pods (web-0),
workloads (deploy/web, sts/db), the pods behind a Service at its target ports
(svc/db), each in the namespace of -n or as NAMESPACE/NAME, and addresses.

A cell has the ports that are reached: "80,443/TCP 53/UDP", "all", or "·" for none.
"other" is ICMP and all other protocols without ports. With --port it has ✓ or ·.
With "~" before it, some pods of the two sides reach the ports and some do not.

A table that is wider than the terminal has numbers for columns and letters for
ports, or is a list where that is shorter. The width is that of COLUMNS or of the
terminal, else 120.

Rules that allow by domain names match nothing here, because only agents know what
pods learn from DNS; they are listed on standard error.

The exit code is 0, or 2 when there is no answer.`,
		Example: `  kubectl-netpol matrix -f ./manifests
  kubectl-netpol matrix -n shop --port http -o markdown
  kubectl-netpol matrix --from deploy/web --from 203.0.113.9 --to svc/db -n shop
  kubectl-netpol matrix --by namespace -o mermaid`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return m.run(cmd) },
	}
	m.traffic.addFlags(cmd.Flags())
	cmd.Flags().Lookup("port").Usage = "the only port to show: a number, or a name that is looked up on each destination pod; empty shows all ports"
	cmd.Flags().StringArrayVar(&m.from, "from", nil, "client: a pod, a workload, svc/NAME or an address; may be repeated")
	cmd.Flags().StringArrayVar(&m.to, "to", nil, "server, as for --from; may be repeated")
	cmd.Flags().StringVar(&m.by, "by", "workload", "what rows and columns are: pod, workload or namespace")
	cmd.Flags().StringVarP(&m.selector, "selector", "l", "", "show only pods with these labels, as in kubectl get -l; sides of --from and --to are shown anyway. One that is not a selector is an error")
	cmd.Flags().StringVarP(&m.output, "output", "o", "table", "table, wide (a table with names for columns, however wide), list, markdown, csv, json, yaml, dot or mermaid")
	cmd.Flags().StringVar(&m.color, "color", "auto", "auto, always or never; auto colours on terminals unless NO_COLOR is set")
	return cmd
}

func (m *matrixOptions) run(cmd *cobra.Command) error {
	if err := checkOutput("matrix", m.output); err != nil {
		return err
	}
	colored, err := useColor(m.color, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	of, ok := groupings[m.by]
	if !ok {
		return fmt.Errorf("--by=%s: must be pod, workload or namespace", m.by)
	}
	selector, err := labels.Parse(m.selector)
	if err != nil {
		return fmt.Errorf("--selector=%s: %w", m.selector, err)
	}
	port, family, err := m.parseTraffic(cmd)
	if err != nil {
		return err
	}
	m.named = slices.Concat(m.from, m.to)
	in, err := m.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	c := reachability.New(in)
	m.findings = m.findingsOf(c)
	if m.ifEnforced, err = m.matrixIfEnforced(c, port, family); err != nil {
		return err
	}
	m.printCaveats(cmd.ErrOrStderr())
	shown := c.Pods(family, m.namespaces()...)
	if !selector.Empty() {
		selected := map[string]bool{}
		for _, p := range in.Pods {
			selected[p.Namespace+"/"+p.Name] = selector.Matches(labels.Set(p.Labels))
		}
		shown = slices.DeleteFunc(shown, func(e reachability.Endpoint) bool { return !selected[e.Name] })
	}
	finder := m.sideFinder(c, in.Pods)
	from, err := m.sides(c, finder, "from", m.from, shown, of)
	if err != nil {
		return err
	}
	to, err := m.sides(c, finder, "to", m.to, shown, of)
	if err != nil {
		return err
	}
	if len(from) == 0 || len(to) == 0 {
		return fmt.Errorf("no pods to show%s: no pod there has an address%s", inNamespace(m.namespace), withLabels(m.selector))
	}
	if len(m.from) == 0 || len(m.to) == 0 {
		printLeftOut(cmd.ErrOrStderr(), c.LeftOut(family, m.namespaces()...))
	}
	if rules := c.DomainRules(); len(rules) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "Not known: what is allowed by domain names, which only agents know: %s\n", shorten(rules))
	}
	done := m.progress(fmt.Sprintf("Evaluating %d × %d", len(from), len(to)))
	overview := c.Overview(from, to, port, family)
	done()
	return m.print(cmd.OutOrStdout(), overview, style{width: terminalWidth(cmd.OutOrStdout()), colored: colored})
}

// parseTraffic returns the port to show, the zero port for all.
func (m *matrixOptions) parseTraffic(cmd *cobra.Command) (reachability.Port, reachability.Family, error) {
	if m.traffic.port != "" || strings.EqualFold(m.traffic.protocol, "ICMP") {
		return m.traffic.parse()
	}
	if cmd.Flags().Changed("protocol") {
		return reachability.Port{}, "", fmt.Errorf("--protocol=%s: needs --port", m.traffic.protocol)
	}
	family, err := parseFamily(m.traffic.family)
	return reachability.Port{}, family, err
}

// inNamespace names the namespace of --namespace, if any.
func inNamespace(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

func withLabels(selector string) string {
	if selector == "" {
		return ""
	}
	return " and the labels " + selector
}

func (m *matrixOptions) namespaces() []string {
	if m.namespace == "" {
		return nil
	}
	return []string{m.namespace}
}

// sides returns the sides that a flag names, each once, and those of the pods that are shown
// if it names none.
func (m *matrixOptions) sides(c *reachability.Cluster, finder *sideFinder, flag string, names []string, shown []reachability.Endpoint, of func(*corev1.Pod) reachability.Side) ([]reachability.Side, error) {
	if len(names) == 0 {
		return c.Sides(shown, of), nil
	}
	var sides []reachability.Side
	var errs []error
	for _, name := range names {
		side, err := finder.find(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--%s=%s: %w", flag, name, err))
			continue
		}
		if !slices.ContainsFunc(sides, func(known reachability.Side) bool { return known.String() == side.String() }) {
			sides = append(sides, side)
		}
	}
	return sides, errors.Join(errs...)
}

func (m *matrixOptions) print(w io.Writer, o *reachability.Overview, s style) error {
	switch m.output {
	case "markdown":
		return printMarkdown(w, o)
	case "csv":
		return printCSV(w, o)
	case "json":
		return printMatrixJSON(w, o, m.caveats())
	case "yaml":
		return printMatrixYAML(w, o, m.caveats())
	case "dot":
		return printDot(w, o)
	case "mermaid":
		return printMermaid(w, o)
	}
	return printTable(w, o, m.output, s)
}

// printLeftOut lists the first few pods that are not shown, with the reasons.
func printLeftOut(w io.Writer, reasons []error) {
	const most = 5
	for _, err := range reasons[:min(most, len(reasons))] {
		fmt.Fprintf(w, "Left out: %v\n", err)
	}
	if more := len(reasons) - most; more > 0 {
		fmt.Fprintf(w, "Left out: %d more\n", more)
	}
}
