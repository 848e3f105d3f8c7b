package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

// explainedFlows is an explanation with the agents' records of the connection.
type explainedFlows struct {
	reachability.Explanation
	Flows []flows.Record `json:"flows"`
}

// checkFlows returns an error if the flags about flows contradict each other.
func (e *explainOptions) checkFlows(cmd *cobra.Command) error {
	why := ""
	switch {
	case e.flows && len(e.records) > 0:
		return errors.New("--flows: not with --records, which has the flows to show")
	case e.flows && len(e.files) > 0:
		return errors.New("--flows: not with --filename: only the agents of a live cluster have flows; --records reads those of a file")
	case slices.Contains(e.files, clusterfiles.Stdin) && slices.Contains(e.records, clusterfiles.Stdin):
		return errors.New("--filename=- and --records=-: standard input can be read once")
	case len(e.records) > 0:
		why = "with --records"
	case !e.flows:
		why = "without --flows"
	}
	return e.checkAgents(cmd, why)
}

// recorded returns the records of agents or of files.
func (e *explainOptions) recorded(cmd *cobra.Command) ([]flows.Record, error) {
	read := func() ([]answer, error) { return e.ask(cmd, []string{agentCommand, "flows"}) }
	if len(e.records) > 0 {
		read = func() ([]answer, error) { return readRecordFiles(e.records, cmd.InOrStdin()) }
	}
	answers, err := read()
	var records []flows.Record
	for i := range answers {
		records = append(records, answers[i].records...)
	}
	return records, err
}

// recordsAbout returns the records of agents, and of flows that are the explained
// connection.
func recordsAbout(records []flows.Record, c *reachability.Cluster, e *reachability.Explanation, port reachability.Port, family reachability.Family) ([]flows.Record, error) {
	from, err := c.Endpoint(e.From)
	if err != nil {
		return nil, err
	}
	to, err := c.Endpoint(e.To)
	if err != nil {
		return nil, err
	}
	p := c.Evaluate(&from, &to, port, family).Query.Packet
	return slices.DeleteFunc(records, func(r flows.Record) bool {
		return r.Type != flows.TypeAgent && (r.Type != flows.TypeFlow || r.Protocol != p.Proto.String() || r.Port != p.Dst.Port() ||
			!isEnd(&r, r.Source, &from) || !isEnd(&r, r.Destination, &to))
	}), nil
}

// isEnd reports whether e, an end of the flow r, is the endpoint or a set of addresses that
// contains it.
func isEnd(r *flows.Record, e *flows.End, endpoint *reachability.Endpoint) bool {
	if e.Pod != "" && strings.Contains(endpoint.Name, "/") {
		return e.Namespace+"/"+e.Pod == endpoint.Name
	}
	block, err := netip.ParsePrefix(r.Several(e))
	return slices.ContainsFunc(endpoint.Addrs(), func(a netip.Addr) bool { return a == e.Address || err == nil && block.Contains(a) })
}

// printFlows says how often a connection was decided and whether the kernel remembers the
// verdict.
func printFlows(w io.Writer, records []flows.Record) error {
	found := recordsOf(records, flows.TypeFlow)
	var out strings.Builder
	fmt.Fprint(&out, "\nWhat agents recorded of it:\n")
	if len(found) == 0 {
		fmt.Fprint(&out, "  No packet.\n")
	}
	now := timesOf(records)
	for _, f := range found {
		text := fmt.Sprintf("On node %s, %s -> %s: %s (%s); packets: %d, the last one %s ago", f.Node, flowEnd(f.Record, f.Source), flowEnd(f.Record, f.Destination),
			verdict(f.Verdict == flows.Allow), decider(&f.Decision), f.Count, duration.HumanDuration(f.age))
		if f.Audit != nil {
			text += "; audited policies: " + auditName(f.Audit)
		}
		fmt.Fprintf(&out, "  %s.\n", printable.Text(text))
		if f.Why != "" {
			fmt.Fprintf(&out, "    Why no domain name allowed it, by the agent: %s.\n", printable.Text(f.Why))
		}
		if since := f.Remembered; since != nil {
			fmt.Fprintf(&out, "    Remembered: for %s the kernel has decided packets like these without asking the agent.\n",
				duration.HumanDuration(max(0, now[f.Node].Sub(*since))))
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}
