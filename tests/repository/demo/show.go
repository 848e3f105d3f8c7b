package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// show runs the steps and prints them.
type show struct {
	out     io.Writer
	verbose bool
	symbols netpol.Symbols
	binary  string // of the agent
	pods    []*lab.Pod
	agents  []*lab.Agent
	sockets []string // of the agents, for probes and flows
	watched lab.Manifests
	probes  int // made and as expected
}

func (s *show) intro(cluster *lab.Lab, took time.Duration) {
	fmt.Fprintf(s.out, `%d nodes and %d pods are up, with an agent on each node (%.1f s).
The policies are in tests/repository/demo/manifests/policies.
Rows are clients, columns are servers:  %s answered   %s blocked   %s not as expected
`, len(cluster.Nodes), len(s.pods), took.Seconds(), s.symbols.Reaches, s.symbols.Blocked, s.symbols.Differs)
}

// steps shows all steps, until one differs.
func (s *show) steps(ctx context.Context) error {
	for i, step := range steps {
		fmt.Fprintf(s.out, "%d. %s\n", i+1, step.title)
		change := func() error { return s.change(step) }
		if step.awaited {
			change = func() error { return s.awaitInForce(ctx, func() error { return s.change(step) }) }
		}
		if err := change(); err != nil {
			return err
		}
		if err := s.checks(ctx, step.checks, step.table); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
		if step.audited == "" {
			continue
		}
		if err := s.audited(ctx, step.audited); err != nil {
			return fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	return nil
}

// audited shows how many packets the agents have counted that a policy would deny. The
// connections of the tables may have been made before the policy was known, so more are
// made until some are counted.
func (s *show) audited(ctx context.Context, policy string) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for {
		packets, err := s.wouldDeny(ctx, policy)
		if err != nil {
			return err
		}
		if packets > 0 {
			fmt.Fprintf(s.out, "   %s would have denied %.0f packets so far (netpol_audit_packets_total)\n", policy, packets)
			return nil
		}
		if _, err := lab.Observe(ctx, s.pods, tcp(80).Over(lab.IPv4), s.table(everything)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no packet is counted that %s would deny: %w", policy, errDiffers)
		}
	}
}

// wouldDeny returns how many packets the agents have counted that an audited policy would
// deny.
func (s *show) wouldDeny(ctx context.Context, policy string) (packets float64, err error) {
	for _, agent := range s.agents {
		metrics, err := agent.Metrics(ctx)
		if err != nil {
			return 0, err
		}
		packets += metrics.Sum("netpol_audit_packets_total", "policy", policy, "verdict", "deny")
	}
	return packets, nil
}

// table returns the expectations of all pairs of pods.
func (s *show) table(want func(from, to string) bool) *netpol.TruthTable {
	names := make([]string, len(s.pods))
	for i, pod := range s.pods {
		names[i] = pod.Name
	}
	return netpol.NewTruthTable(names, false).Fill(want)
}

// change applies and removes the policies of a step.
func (s *show) change(step step) error {
	var done []string
	if len(step.apply) > 0 {
		done = append(done, "apply "+strings.Join(step.apply, ", "))
	}
	if len(step.remove) > 0 {
		done = append(done, "remove "+strings.Join(step.remove, ", "))
	}
	if len(done) > 0 {
		fmt.Fprintf(s.out, "   %s\n", strings.Join(done, "; "))
	}
	for _, name := range step.apply {
		content, err := manifests.ReadFile(policyFile(name))
		if err != nil {
			return err
		}
		if err := s.watched.Write(name, string(content)); err != nil {
			return err
		}
	}
	for _, name := range step.remove {
		if err := s.watched.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

// checks makes checks, and says how many probes were as expected.
func (s *show) checks(ctx context.Context, checks []check, table bool) error {
	before := s.probes
	for _, c := range checks {
		if err := s.check(ctx, c, table || s.verbose); err != nil {
			return err
		}
	}
	fmt.Fprintf(s.out, "   %s %d probes over IPv4 and IPv6 as expected\n", s.symbols.Reaches, s.probes-before)
	return nil
}

// check probes all pairs with the traffic of c over both families at once, and
// shows the tables: IPv4 if it is asked for or differs, IPv6 where it differs.
func (s *show) check(ctx context.Context, c check, table bool) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	want := s.table(c.want)
	over4 := make([]*netpol.TruthTable, len(c.traffic))
	over6 := make([]*netpol.TruthTable, len(c.traffic))
	var group errgroup.Group
	for i, traffic := range c.traffic {
		group.Go(func() (err error) {
			over4[i], err = lab.Observe(ctx, s.pods, traffic.Over(lab.IPv4), want)
			return err
		})
		group.Go(func() (err error) {
			over6[i], err = lab.Observe(ctx, s.pods, traffic.Over(lab.IPv6), want)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return s.report(c, want, over4, over6, table)
}

// report prints the observed table and counts its probes.
func (s *show) report(c check, want *netpol.TruthTable, over4, over6 []*netpol.TruthTable, table bool) error {
	grids4 := []netpol.Grid{{Title: "expected", Want: want}}
	grids6 := []netpol.Grid{{Title: "expected", Want: want}}
	made, differ, differ6 := 0, 0, 0
	for i, traffic := range c.traffic {
		title := fmt.Sprintf("%s %d", traffic.Proto, traffic.Port)
		grids4 = append(grids4, netpol.Grid{Title: title, Want: want, Got: over4[i]})
		grids6 = append(grids6, netpol.Grid{Title: title + ", IPv6", Want: want, Got: over6[i]})
		made += 2 * len(s.pods) * len(s.pods)
		differ6 += len(want.Compare(over6[i]))
		differ += len(want.Compare(over4[i])) + len(want.Compare(over6[i]))
	}
	if table || differ > 0 {
		fmt.Fprintln(s.out, indent(netpol.Show(s.symbols, grids4...)))
	}
	if differ6 > 0 {
		fmt.Fprintln(s.out, indent(netpol.Show(s.symbols, grids6...)))
	}
	if differ > 0 {
		fmt.Fprintf(s.out, "   %s %d of %d probes over IPv4 and IPv6 differ.\n", s.symbols.Differs, differ, made)
		return errDiffers
	}
	s.probes += made
	return nil
}

// shorten returns the first lines of a text, and how many more there are.
func shorten(text string, lines int) string {
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(all) <= lines+1 {
		return text
	}
	return fmt.Sprintf("%s\n… %d lines more with -v", strings.Join(all[:lines], "\n"), len(all)-lines)
}

func indent(text string) string {
	return "   " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n   ")
}

// symbols are UTF-8 where the locale says so.
func symbols() netpol.Symbols {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := os.Getenv(name); locale != "" {
			if strings.Contains(strings.ToLower(strings.ReplaceAll(locale, "-", "")), "utf8") {
				return netpol.Unicode
			}
			return netpol.ASCII
		}
	}
	return netpol.ASCII
}
