package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

type diffOptions struct {
	*options
	traffic   traffic
	addresses []string
	output    string
}

func newDiff(o *options) *cobra.Command {
	d := &diffOptions{options: o}
	cmd := &cobra.Command{
		Use:   "diff -f BEFORE -f AFTER | diff -f POLICIES",
		Short: "Show which connections would change",
		Long: `Show which connections two clusters allow differently.

With two -f, BEFORE and AFTER are whole clusters. If AFTER has no pods, its pods,
namespaces and nodes are those of BEFORE, so that AFTER may consist of policies
alone. With one -f, its policies are added to the live cluster and replace those
of the same name, as "kubectl apply" would; other objects in the manifests are
ignored.

All ports and protocols are compared: of each range of ports that the policies
treat alike, one port is compared, and likewise of addresses outside of the
cluster. Of nodes, every address is compared. What domain names allow is not
compared: only agents know what pods learn from DNS. --port, --protocol and
--address narrow it down.

The exit code is 0 when nothing changes, 1 when something does, 2 when there is
no answer.`,
		Example: `  kubectl-netpol diff -f policy.yaml
  kubectl-netpol diff -f before -f after -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	d.traffic.addFlags(cmd.Flags())
	protocol := cmd.Flags().Lookup("protocol")
	protocol.DefValue, protocol.Usage = "", "TCP, UDP, SCTP or ICMP; empty compares all, and with --port TCP"
	d.traffic.protocol = ""
	cmd.Flags().Lookup("port").Usage = "port to compare, a number or a name that is looked up on each destination pod; empty compares all"
	cmd.Flags().StringArrayVar(&d.addresses, "address", nil, "address that is no pod's to compare, may be repeated; none takes those of the nodes, and one of each stretch that the policies' blocks do not divide")
	addTextOutput(cmd, &d.output)
	return cmd
}

func (d *diffOptions) run(cmd *cobra.Command) error {
	if err := checkOutput(d.output, "text", "json"); err != nil {
		return err
	}
	if d.namespace != "" {
		return fmt.Errorf("--namespace=%s: diff compares all namespaces", d.namespace)
	}
	family, err := parseFamily(d.traffic.family)
	if err != nil {
		return err
	}
	before, after, err := d.clusters(cmd)
	if err != nil {
		return err
	}
	d.printLimits(cmd.ErrOrStderr())
	spans, err := d.spans(before, after)
	if err != nil {
		return err
	}
	addresses := d.addresses
	if len(addresses) == 0 {
		addresses = append(reachability.NodeAddresses(before, after), reachability.ExternalAddresses(before, after)...)
	}
	difference, err := reachability.Compare(before, after, spans, addresses, family)
	if err != nil {
		return err
	}
	if difference.Pods == 0 {
		return errors.New("no pod is in both clusters: there is nothing to compare")
	}
	if d.output == "json" {
		err = printJSON(cmd.OutOrStdout(), d.withLimits(difference))
	} else {
		err = printDifference(cmd.OutOrStdout(), &difference)
	}
	if err == nil && len(difference.Changes) > 0 {
		return errNo
	}
	return err
}

// clusters reads the two clusters.
func (d *diffOptions) clusters(cmd *cobra.Command) (before, after *reachability.Cluster, err error) {
	var a, b clusterstate.Input
	switch len(d.files) {
	case 1:
		if b, err = d.readFiles(d.files, cmd.InOrStdin()); err != nil {
			return nil, nil, err
		}
		if len(b.Policies) == 0 {
			return nil, nil, fmt.Errorf("--filename=%s: no policy to apply", d.files[0])
		}
		if a, err = d.live(cmd.Context()); err != nil {
			return nil, nil, err
		}
		b = applied(a, b)
	case 2:
		if a, err = d.readFiles(d.files[:1], cmd.InOrStdin()); err != nil {
			return nil, nil, err
		}
		if b, err = d.readFiles(d.files[1:], cmd.InOrStdin()); err != nil {
			return nil, nil, err
		}
		if len(b.Pods) == 0 {
			b.Pods, b.Namespaces, b.Nodes = a.Pods, a.Namespaces, a.Nodes
		}
	default:
		return nil, nil, errors.New("--filename: one (policies to apply to the live cluster) or two (before and after) are needed")
	}
	return reachability.New(a), reachability.New(b), nil
}

// applied returns a cluster with the policies of changes applied to it.
func applied(cluster, changes clusterstate.Input) clusterstate.Input {
	replaced := func(p compile.Object) bool {
		return slices.ContainsFunc(changes.Policies, func(c compile.Object) bool {
			return compile.KindOf(c) == compile.KindOf(p) && c.GetNamespace() == p.GetNamespace() && c.GetName() == p.GetName()
		})
	}
	cluster.Policies = append(slices.DeleteFunc(slices.Clone(cluster.Policies), replaced), changes.Policies...)
	return cluster
}

// spans returns the traffic to compare.
func (d *diffOptions) spans(before, after *reachability.Cluster) ([]reachability.PortRange, error) {
	if d.traffic.port != "" {
		port, err := reachability.ParsePort(d.traffic.port, cmp.Or(d.traffic.protocol, packet.TCP.String()))
		return []reachability.PortRange{reachability.PortRangeOf(port)}, err
	}
	spans := reachability.PortRanges(before, after)
	if d.traffic.protocol == "" {
		return spans, nil
	}
	spans = slices.DeleteFunc(spans, func(s reachability.PortRange) bool {
		return !strings.EqualFold(d.traffic.protocol, s.Proto.String())
	})
	if len(spans) > 0 {
		return spans, nil
	}
	// No policy names a port of the protocol: they are all alike.
	port, err := reachability.ParsePort("1", d.traffic.protocol)
	return []reachability.PortRange{{Proto: port.Proto, First: 1, Last: 65535}}, err
}

func printDifference(w io.Writer, d *reachability.Difference) error {
	var out strings.Builder
	if len(d.Changes) == 0 {
		out.WriteString("Nothing changes.\n")
	}
	for i := range d.Changes {
		c := &d.Changes[i]
		fmt.Fprintf(&out, "%s:\n", join(c.Traffic))
		printLines(&out, "no longer allowed", c.Lost)
		printLines(&out, "newly allowed", c.Gained)
	}
	fmt.Fprintf(&out, "\nCompared: %s, between %s", join(d.Checked), count(d.Pods, "pod", "pods"))
	if len(d.Nodes) > 0 {
		fmt.Fprintf(&out, ", with %s of nodes", shorten(d.Nodes))
	}
	if len(d.External) > 0 {
		fmt.Fprintf(&out, ", and with %s outside", shorten(d.External))
	}
	out.WriteString(".\n")
	if len(d.DomainRules) > 0 {
		fmt.Fprintf(&out, "Not compared: what is allowed by domain names, which only agents know: %s\n", shorten(d.DomainRules))
	}
	printNames(&out, "Only before, not compared", d.OnlyBefore)
	printNames(&out, "Only after, not compared", d.OnlyAfter)
	_, err := io.WriteString(w, out.String())
	return err
}

// join lists traffic, what follows each other as one.
func join(spans []reachability.PortRange) string {
	var names []string
	for _, s := range reachability.JoinPortRanges(spans) {
		names = append(names, s.String())
	}
	return strings.Join(names, "; ")
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// printLines prints the cells of m, those of sides that change alike together.
func printLines(out *strings.Builder, what string, m *reachability.Matrix) {
	groups := m.Groups()
	for _, from := range groups {
		var to []string
		for _, g := range groups {
			switch {
			case !m.AllowedBetween(from, g):
			case g.Row == from.Row:
				to = append(to, "each other")
			default:
				to = append(to, members(g)...)
			}
		}
		if len(to) > 0 {
			fmt.Fprintf(out, "  %s: %s -> %s\n", what, shorten(members(from)), shorten(to))
		}
	}
}

func printNames(out *strings.Builder, what string, names []string) {
	if len(names) > 0 {
		fmt.Fprintf(out, "%s: %s\n", what, shorten(names))
	}
}

func members(g reachability.Group) []string {
	var names []string
	for _, s := range g.Members {
		names = append(names, s.Name)
	}
	return names
}

// mostNames is the maximum number of names in a line.
const mostNames = 8

func shorten(names []string) string {
	line := strings.Join(names[:min(mostNames, len(names))], ", ")
	if more := len(names) - mostNames; more > 0 {
		line += fmt.Sprintf(", and %d more", more)
	}
	return line
}
