package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

type matrixOptions struct {
	*options
	traffic  traffic
	from, to []string
	output   string
}

func newMatrix(o *options) *cobra.Command {
	m := &matrixOptions{options: o}
	cmd := &cobra.Command{
		Use:   "matrix --port PORT [--protocol PROTOCOL]",
		Short: "Show which pods reach which",
		Long: `Show for every pair of pods whether the first may connect to the second.

Sides are pods (namespace/pod) and addresses. Those of --from are the rows, those
of --to the columns; where a flag is missing, they are all pods, or all of -n. In
a table, pods with the same reachability share a row and a column.

Rules that allow by domain names match nothing here, because only agents know what
pods learn from DNS; they are listed on standard error.`,
		Example: `  kubectl-netpol matrix --port 80 -f ./manifests
  kubectl-netpol matrix --port http -n shop -o markdown
  kubectl-netpol matrix --port 53 --protocol UDP --from shop/web --from 203.0.113.9`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return m.run(cmd) },
	}
	m.traffic.addFlags(cmd.Flags())
	cmd.Flags().StringArrayVar(&m.from, "from", nil, "client, namespace/pod or address; may be repeated")
	cmd.Flags().StringArrayVar(&m.to, "to", nil, "server, namespace/pod or address; may be repeated")
	cmd.Flags().StringVarP(&m.output, "output", "o", "table", "table, markdown, json or yaml")
	return cmd
}

func (m *matrixOptions) run(cmd *cobra.Command) error {
	if err := checkOutput(m.output, "table", "markdown", "json", "yaml"); err != nil {
		return err
	}
	port, family, err := m.traffic.parse()
	if err != nil {
		return err
	}
	m.named = slices.Concat(m.from, m.to)
	in, err := m.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	m.printLimits(cmd.ErrOrStderr())
	c := reachability.New(in)
	from, err := m.side(c, "from", m.from, family)
	if err != nil {
		return err
	}
	to, err := m.side(c, "to", m.to, family)
	if err != nil {
		return err
	}
	if len(from) == 0 || len(to) == 0 {
		return fmt.Errorf("no pods to show%s: no pod there has an address", inNamespace(m.namespace))
	}
	if len(m.from) == 0 || len(m.to) == 0 {
		printLeftOut(cmd.ErrOrStderr(), c.LeftOut(family, m.namespaces()...))
	}
	if rules := c.DomainRules(); len(rules) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "Not known: what is allowed by domain names, which only agents know: %s\n", shorten(rules))
	}
	return m.print(cmd.OutOrStdout(), c.Matrix(from, to, port, family))
}

// inNamespace names the namespace of --namespace, if any.
func inNamespace(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " in namespace " + namespace
}

func (m *matrixOptions) namespaces() []string {
	if m.namespace == "" {
		return nil
	}
	return []string{m.namespace}
}

// side returns the sides that a flag names, and all pods if it names none.
func (m *matrixOptions) side(c *reachability.Cluster, flag string, names []string, family reachability.Family) ([]reachability.Endpoint, error) {
	if len(names) == 0 {
		return c.Pods(family, m.namespaces()...), nil
	}
	return m.sides(c, flag, names)
}

func (m *matrixOptions) print(w io.Writer, matrix *reachability.Matrix) error {
	switch m.output {
	case "table":
		return newTable(matrix).print(w)
	case "markdown":
		return newTable(matrix).printMarkdown(w)
	}
	if m.output == "yaml" {
		return printYAML(w, matrix)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(m.withLimits(matrix))
}

// printYAML writes what JSON has. The encoders of a million cells take gigabytes,
// and there is little to encode: names are ASCII, and quoted as in JSON.
func printYAML(w io.Writer, m *reachability.Matrix) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "port: %q\nprotocol: %q\npods:\n", m.Port, m.Port.Proto)
	for _, name := range m.Names() {
		fmt.Fprintf(out, "- %q\n", name)
	}
	fmt.Fprintln(out, "allowed:")
	for row, from := range m.From {
		fmt.Fprintf(out, "  %q:\n", from.Name)
		for column, to := range m.To {
			fmt.Fprintf(out, "    %q: %v\n", to.Name, m.Allowed(row, column))
		}
	}
	return out.Flush()
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
