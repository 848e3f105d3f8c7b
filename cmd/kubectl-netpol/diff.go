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
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

type diffOptions struct {
	*options
	traffic   traffic
	addresses []string
	replace   bool
	output    string
}

func newDiff(o *options) *cobra.Command {
	d := &diffOptions{options: o}
	cmd := &cobra.Command{
		Use:   "diff -f POLICIES | diff -f CLUSTER -f POLICIES",
		Short: "Show which connections would change",
		Long: `Show which connections would change if manifests were applied to the live cluster or,
with two -f, to that of the first one.

As with "kubectl apply", policies replace those of the same name, and labels are added
to Namespaces and Nodes. Pods get the labels and ports that their manifests or the
templates of their workloads have. Nothing is deleted. With --replace, the manifests
are all policies that there are then (with -n, all of that namespace): others are
deleted. If there are pods among them, they are the whole cluster.

All ports and protocols are compared: of each range of ports that the policies
treat alike, one port is compared, and likewise of addresses outside of the
cluster. Of nodes, every address is compared. What domain names allow is not
compared: only agents know what pods learn from DNS. --port, --protocol and
--address narrow it down, and -n to connections of the pods of one namespace.

Pods that may come are compared, too: in each namespace a "new pod" without labels,
and where a workload has one pod, a second one.

The exit code is 0 when nothing changes, 1 when something does, 2 when there is
no answer.`,
		Example: `  kubectl-netpol diff -f policy.yaml
  kubectl-netpol diff -f cluster.yaml -f policy.yaml -o markdown
  kubectl-netpol diff -f before -f after --replace -o json`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	fs := cmd.Flags()
	d.traffic.addFlags(fs)
	protocol := fs.Lookup("protocol")
	protocol.DefValue, protocol.Usage = "", "TCP, UDP, SCTP or ICMP; empty compares all, and with --port TCP"
	d.traffic.protocol = ""
	fs.Lookup("port").Usage = "port to compare, a number or a name that is looked up on each destination pod; empty compares all"
	fs.StringArrayVar(&d.addresses, "address", nil, "address that is no pod's to compare, may be repeated; none takes those of the nodes, and one of each stretch that the policies' blocks do not divide")
	fs.BoolVar(&d.replace, "replace", false, "the manifests are all policies of the cluster, or of -n: those that are not among them are deleted")
	fs.StringVarP(&d.output, "output", "o", "text", "text, markdown (for a comment on a pull request) or json")
	return cmd
}

func (d *diffOptions) run(cmd *cobra.Command) error {
	if err := checkOutput("diff", d.output); err != nil {
		return err
	}
	before, after, added, err := d.clusters(cmd)
	if err != nil {
		return err
	}
	answer, err := d.compare(before, after)
	if err != nil {
		d.printCaveats(cmd.ErrOrStderr())
		return err
	}
	answer.OnlyAfter = append(answer.OnlyAfter, added...)
	d.findings = d.findingsOf(after)
	if d.ifEnforced, err = d.diffIfEnforced(before, after); err != nil {
		return err
	}
	if d.output == "markdown" {
		err = printDifferenceMarkdown(cmd.OutOrStdout(), &answer, d.notesOf())
	} else {
		d.printCaveats(cmd.ErrOrStderr())
		if d.output == "json" {
			err = printJSON(cmd.OutOrStdout(), d.withCaveats(answer))
		} else {
			err = printDifference(cmd.OutOrStdout(), &answer)
		}
	}
	if err == nil && len(answer.Changes) > 0 {
		return errNo
	}
	return err
}

func (d *diffOptions) compare(before, after *reachability.Cluster) (reachability.Difference, error) {
	family, err := parseFamily(d.traffic.family)
	if err != nil {
		return reachability.Difference{}, err
	}
	spans, err := d.spans(before, after)
	if err != nil {
		return reachability.Difference{}, err
	}
	addresses := d.addresses
	if len(addresses) == 0 {
		addresses = append(reachability.NodeAddresses(before, after), reachability.ExternalAddresses(before, after)...)
	}
	difference, err := reachability.Compare(before, after, spans, addresses, family, d.namespaces()...)
	if err == nil && difference.Pods == 0 {
		err = fmt.Errorf("no pod%s is in both clusters: there is nothing to compare", inNamespace(d.namespace))
	}
	return difference, err
}

// clusters reads the two clusters. added are pods that only the second one has.
func (d *diffOptions) clusters(cmd *cobra.Command) (before, after *reachability.Cluster, added []string, err error) {
	if len(d.files) != 1 && len(d.files) != 2 {
		return nil, nil, nil, errors.New("--filename: one (manifests to apply to the live cluster) or two (a cluster, and manifests to apply to it) are needed")
	}
	last := len(d.files) - 1
	changes, err := d.changes(d.files[last], cmd.InOrStdin())
	if err != nil {
		return nil, nil, nil, err
	}
	if len(changes.Policies) == 0 && !d.replace {
		return nil, nil, nil, fmt.Errorf("--filename=%s: no policy to apply", d.files[last])
	}
	var was clusterstate.Input
	if last == 0 {
		d.templates = true
		for _, p := range changes.Policies {
			d.named = append(d.named, p.GetNamespace()+"/"+p.GetName())
		}
		was, err = d.live(cmd.Context())
	} else {
		d.upcoming = changes.Policies
		was, err = d.readFiles(d.files[:1], cmd.InOrStdin())
	}
	if err != nil {
		return nil, nil, nil, err
	}
	var is clusterstate.Input
	if d.replace {
		is = replaced(was, changes, d.namespace)
	} else {
		is, added = applied(was, changes)
	}
	was, is = reachability.AddNewPods(was, is, d.namespaces()...)
	return reachability.New(was), reachability.New(is), added, nil
}

// changes reads what is applied to a cluster. What the file does not have is there, so
// that nothing is assumed.
func (d *diffOptions) changes(path string, stdin io.Reader) (clusterstate.Input, error) {
	objects, err := d.readSilently([]string{path}, stdin)
	if err != nil {
		return clusterstate.Input{}, err
	}
	if !d.replace {
		objects.AssumedPods, objects.Unaddressed, objects.AssumedNamespaces, objects.AssumedNodes = nil, nil, nil, nil
	}
	d.printNotes(objects)
	return d.input(objects), nil
}

// namespaces are those whose connections are compared, none for all.
func (d *diffOptions) namespaces() []string {
	if d.namespace == "" {
		return nil
	}
	return []string{d.namespace}
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
