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

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

type matrixOptions struct {
	*options
	traffic  traffic
	from, to []string
	by       string
	selector string
	output   string
	color    string

	exposures []exposure.Exposure // of the servers
}

// groupings are the values of --by: the side that represents a pod.
var groupings = map[string]func(*corev1.Pod) reachability.Side{"pod": ofPod, "workload": ofWorkload, "namespace": ofNamespace}

func newMatrix(o *options) *cobra.Command {
	m := &matrixOptions{options: o}
	cmd := &cobra.Command{
		Use:   "matrix [--port PORT] [--protocol PROTOCOL]",
		Short: "Show which workloads reach which, and at which ports",
		Long: `Show for every pair of workloads the ports at which the first may connect to the
second.

Rows are clients, columns servers: all workloads, or those of -n and -l, in each
namespace a "new pod" without labels that may come, one of a "new namespace", and
"outside": all addresses that are neither pods' nor nodes'. --by takes
pods or namespaces instead, --from and --to take what they name: pods (web-0),
workloads (deploy/web, sts/db), the pods behind a Service at its target ports
(svc/db), each in the namespace of -n or as NAMESPACE/NAME, and addresses.

A cell has the ports that are reached: "80,443/TCP 53/UDP", "all", or "·" for none.
"other" is ICMP and all other protocols without ports. With --port it has ✓ or ·.
With "~" before it, some pods of the two sides reach the ports and some do not.

What is wider than the terminal is a list instead. The width is that of COLUMNS or of
the terminal, else 120. view -o html makes a page, and other forms come from JSON.

Rules that allow by domain names match nothing here, because only agents know what
pods learn from DNS; they are listed on standard error.

The exit code is 0, or 2 when there is no answer.`,
		Example: `  kubectl-netpol matrix -f ./manifests
  kubectl-netpol matrix -n shop --port http -o json
  kubectl-netpol matrix --from deploy/web --from 203.0.113.9 --to svc/db -n shop
  kubectl-netpol matrix --by namespace`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return m.run(cmd) },
	}
	m.traffic.addFlags(cmd.Flags())
	cmd.Flags().Lookup("port").Usage = "the only port to show: a number, or a name that is looked up on each destination pod; empty shows all ports"
	cmd.Flags().StringArrayVar(&m.from, "from", nil, "client: a pod, a workload, svc/NAME or an address; may be repeated")
	cmd.Flags().StringArrayVar(&m.to, "to", nil, "server, as for --from; may be repeated")
	cmd.Flags().StringVar(&m.by, "by", "workload", "what rows and columns are: pod, workload or namespace")
	cmd.Flags().StringVarP(&m.selector, "selector", "l", "", "show only pods with these labels, as in kubectl get -l; sides of --from and --to are shown anyway. One that is not a selector is an error")
	cmd.Flags().StringVarP(&m.output, "output", "o", "table", "table or json")
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
	sideOf, ok := groupings[m.by]
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
	if err := m.checkNamespace(in.Namespaces); err != nil {
		return err
	}
	c := m.cluster(m.withNewPods(in))
	m.findings = m.findingsOf(c)
	if m.exposingLimit != "" {
		m.limits = append(m.limits, m.exposingLimit)
	}
	if m.ifEnforced, err = m.matrixIfEnforced(c, port, family); err != nil {
		return err
	}
	m.printCaveats(cmd.ErrOrStderr())
	shown := selectedPods(c.Pods(family, m.namespaces()...), in.Pods, selector)
	finder := m.sideFinder(c, in.Pods)
	if !slices.ContainsFunc(shown, func(e reachability.Endpoint) bool { return finder.hasPod(e.Name) }) {
		shown = nil // pods that may come are shown beside those that are there
	}
	from, to, port, err := m.sides(cmd.ErrOrStderr(), finder, port, m.addOthers(c.Sides(shown, sideOf), c, family))
	if err != nil {
		return err
	}
	if len(from) == 0 || len(to) == 0 {
		return noPods(len(in.Pods), m.namespace, m.selector)
	}
	m.printNotShown(cmd.ErrOrStderr(), c, family)
	done := m.progress(fmt.Sprintf("Evaluating %d × %d", len(from), len(to)))
	overview := c.Overview(from, to, port, family)
	m.exposures = m.exposed(c, in, &m.services, m.exposing, m.selected(to))
	done()
	return m.print(cmd, overview, style{width: terminalWidth(cmd.OutOrStdout()), colored: colored})
}

// selected returns the members of the servers if --to or --selector selects them, nil for all of the
// namespace.
func (m *matrixOptions) selected(to []reachability.Side) map[string]bool {
	if len(m.to) == 0 && m.selector == "" {
		return nil
	}
	return membersOf(to...)
}

// withNewPods adds the pods that may come, unless the user selects pods by labels. A row of a
// whole namespace does not have them, as it would be about two things.
func (m *matrixOptions) withNewPods(in clusterstate.Input) clusterstate.Input {
	if m.selector != "" || len(m.from) > 0 && len(m.to) > 0 {
		return in
	}
	if m.by == "namespace" {
		return reachability.WithNewPods(in, reachability.NewNamespace)
	}
	return reachability.WithNewPods(in, m.namespaces()...)
}

// addOthers adds what is not in the cluster to the sides of pods: pods of namespaces that may
// come, and the addresses outside. Without pods there is nothing to show.
func (m *matrixOptions) addOthers(sides []reachability.Side, c *reachability.Cluster, family reachability.Family) []reachability.Side {
	if len(sides) == 0 {
		return nil
	}
	isNew := func(s reachability.Side) bool { return s.Namespace == reachability.NewNamespace }
	others := c.Sides(c.Pods(family, reachability.NewNamespace), groupings[m.by])
	sides = append(slices.DeleteFunc(sides, isNew), others...)
	if outside := c.Outside(family, m.services.translated()); len(outside.Members) > 0 {
		sides = append(sides, outside)
	}
	return sides
}

// servicePort says which of the servers are addresses of Services, and returns the port to
// look at behind them.
func (m *matrixOptions) servicePort(w io.Writer, finder *sideFinder, port reachability.Port) (reachability.Port, error) {
	var targets []reachability.Port
	for _, name := range m.to {
		_, target, notes, err := finder.findAt(name, port)
		if err != nil {
			return port, fmt.Errorf("--to=%s: %w", name, err)
		}
		if s := finder.serviceAt(name); s != nil && port == (reachability.Port{}) {
			notes = []string{fmt.Sprintf("%s is an address of service %s/%s: shown is what stands behind it, at its target ports", name, s.Namespace, s.Name)}
		}
		for _, note := range notes {
			fmt.Fprintln(w, note)
		}
		if !slices.Contains(targets, target) {
			targets = append(targets, target)
		}
	}
	switch len(targets) {
	case 0:
		return port, nil
	case 1:
		return targets[0], nil
	}
	return port, errors.New("--port: the Services in --to have different target ports for it; show one Service at a time, or all ports without --port")
}

// printNotShown says which pods the matrix leaves out, and which rules are not known.
func (m *matrixOptions) printNotShown(w io.Writer, c *reachability.Cluster, family reachability.Family) {
	if len(m.from) == 0 || len(m.to) == 0 {
		printLeftOut(w, c.LeftOut(family, m.namespaces()...))
	}
	if rules := c.DomainRules(); len(rules) > 0 {
		fmt.Fprintf(w, "Not known: what is allowed by domain names, which only agents know: %s\n", shorten(rules))
	}
}

// selectedPods returns the endpoints whose pods' labels match.
func selectedPods(endpoints []reachability.Endpoint, pods []*corev1.Pod, selector labels.Selector) []reachability.Endpoint {
	if selector.Empty() {
		return endpoints
	}
	selected := map[string]bool{}
	for _, p := range pods {
		selected[p.Namespace+"/"+p.Name] = selector.Matches(labels.Set(p.Labels))
	}
	return slices.DeleteFunc(endpoints, func(e reachability.Endpoint) bool { return !selected[e.Name] })
}

// parseTraffic returns the port to show, or the zero port for all.
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

// noPods is the error for nothing to show.
func noPods(all int, namespace, selector string) error {
	if all == 0 {
		return errors.New("no pods to show: there are none, nor workloads")
	}
	return fmt.Errorf("no pods to show%s: no pod there has an address%s", inNamespace(namespace), withLabels(selector))
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

// sides returns the clients and the servers, and the port to look at.
func (m *matrixOptions) sides(notes io.Writer, finder *sideFinder, port reachability.Port, all []reachability.Side) (from, to []reachability.Side, _ reachability.Port, err error) {
	if from, err = m.clients(notes, finder, all); err != nil {
		return nil, nil, port, err
	}
	if to, err = m.servers(finder, port, all); err != nil {
		return nil, nil, port, err
	}
	port, err = m.servicePort(notes, finder, port)
	return from, to, port, err
}

// clients returns the sides of --from, or all if it names none.
func (m *matrixOptions) clients(notes io.Writer, finder *sideFinder, all []reachability.Side) ([]reachability.Side, error) {
	if len(m.from) == 0 {
		return all, nil
	}
	return sidesNamed("from", m.from, func(name string) (reachability.Side, error) {
		side, said, err := finder.findClient(name)
		for _, note := range said {
			fmt.Fprintln(notes, note)
		}
		return side, err
	})
}

// servers returns the sides of --to, for Services what stands behind the port, or all if it names none.
func (m *matrixOptions) servers(finder *sideFinder, port reachability.Port, all []reachability.Side) ([]reachability.Side, error) {
	if len(m.to) == 0 {
		return all, nil
	}
	return sidesNamed("to", m.to, func(name string) (reachability.Side, error) {
		side, _, _, err := finder.findAt(name, port)
		return side, err
	})
}

// sidesNamed returns the sides that a flag names, without duplicates.
func sidesNamed(flag string, names []string, find func(string) (reachability.Side, error)) ([]reachability.Side, error) {
	var sides []reachability.Side
	var errs []error
	for _, name := range names {
		side, err := find(name)
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

func (m *matrixOptions) print(cmd *cobra.Command, o *reachability.Overview, s style) error {
	w := cmd.OutOrStdout()
	caveats := m.caveats()
	if len(m.exposures) > 0 {
		caveats = append(caveats, caveat{"exposed", m.exposures})
	}
	if m.output == "json" {
		return printMatrixJSON(w, o, caveats)
	}
	return errors.Join(printTable(w, o, s), m.printExposures(w))
}

// printExposures prints what Ingresses and routes expose of the servers.
func (m *matrixOptions) printExposures(w io.Writer) error {
	lines := exposureLines(m.exposures)
	if lines == nil {
		return nil
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(lines, "\n"))
	return err
}

// printLeftOut lists the first few pods that are not shown, with the reasons.
func printLeftOut(w io.Writer, reasons []error) {
	const maxLines = 5
	for _, err := range reasons[:min(maxLines, len(reasons))] {
		fmt.Fprintf(w, "Left out: %v\n", err)
	}
	if more := len(reasons) - maxLines; more > 0 {
		fmt.Fprintf(w, "Left out: %d more\n", more)
	}
}
