package main

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// connection is a client and a server.
type connection struct{ from, to string }

func (c connection) String() string { return c.from + " -> " + c.to }

// recorded are the connections that are made in the last act, to seenPort.
var recorded = []connection{{"x/b", "y/a"}, {"z/c", "y/a"}, {"y/a", "y/b"}}

const (
	seenPort = 80
	// probeTimeout is how long a connection may take that nothing denies.
	probeTimeout = 5 * time.Second
)

// notYButRecorded is the table of the default deny and the suggestion.
func notYButRecorded(from, to string) bool {
	return notY(from, to) || slices.Contains(recorded, connection{from, to})
}

// suggest shows how policies come out of what agents have recorded: connections that an
// audited default deny would deny, the policies that kubectl netpol suggests for them, and
// what passes when these and the default deny are enforced. The agents are started again,
// so that no earlier connection is recorded.
func (s *show) suggest(ctx context.Context, cluster *lab.Lab, tool string) error {
	fmt.Fprintf(s.out, "%d. The last act: from an audited default deny to policies that allow what was seen.\n", len(steps)+1)
	if err := s.change(step{apply: []string{"audited-deny"}}); err != nil {
		return err
	}
	if err := s.startAgents(ctx, cluster); err != nil {
		return err
	}
	records, err := s.record(ctx)
	if err != nil {
		return err
	}
	seen := make([]string, len(recorded))
	for i, c := range recorded {
		seen[i] = c.String()
	}
	fmt.Fprintf(s.out, "   audited-deny would have denied TCP %d of %s\n", seenPort, strings.Join(seen, ", "))
	policies, err := s.suggestion(ctx, tool, records)
	if err != nil {
		return err
	}
	text := policies
	if !s.verbose {
		text = shorten(policies, 4)
	}
	fmt.Fprintf(s.out, "   $ kubectl netpol suggest -n y --enforce\n%s\n", indent(text))
	if err := s.watched.Write("suggested", policies); err != nil {
		return err
	}
	fmt.Fprintln(s.out, "   apply these policies")
	if err := s.change(step{apply: []string{"default-deny"}, remove: []string{"audited-deny"}}); err != nil {
		return err
	}
	return s.checks(ctx, []check{
		{notYButRecorded, []lab.Traffic{tcp(seenPort)}},
		{notY, []lab.Traffic{tcp(8000), udp(seenPort)}},
	}, false)
}

// record makes the connections until the agents have recorded that each would have been
// denied, and returns their records. A connection that was made before an agent had the
// policy is not recorded, so they are made again.
func (s *show) record(ctx context.Context) ([]flows.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		for _, c := range recorded {
			from, to := s.pod(c.from), s.pod(c.to)
			if _, err := from.Probe(ctx, lab.TCP, netip.AddrPortFrom(to.Addr(lab.IPv4), seenPort), probeTimeout); err != nil {
				return nil, err
			}
		}
		records, err := s.readRecords(ctx)
		if err != nil {
			return nil, err
		}
		missing := slices.ContainsFunc(recorded, func(c connection) bool { return !wouldBeDenied(records, c) })
		switch {
		case !missing:
			return records, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("the agents have not recorded all connections: %w", errDiffers)
		}
	}
}

func (s *show) pod(name string) *lab.Pod {
	return s.pods[slices.IndexFunc(s.pods, func(p *lab.Pod) bool { return p.Name == name })]
}

// wouldBeDenied reports whether a connection is recorded as one that passed and that audited
// policies would deny.
func wouldBeDenied(records []flows.Record, c connection) bool {
	return slices.ContainsFunc(records, func(r flows.Record) bool {
		return r.Type == flows.TypeFlow && r.Verdict == flows.Allow && r.Audit != nil && r.Audit.Verdict == flows.Deny && r.Port == seenPort &&
			r.Source.Namespace+"/"+r.Source.Pod == c.from && r.Destination.Namespace+"/"+r.Destination.Pod == c.to
	})
}

// readRecords asks the agents what they have recorded.
func (s *show) readRecords(ctx context.Context) ([]flows.Record, error) {
	var records []flows.Record
	for _, socket := range s.sockets {
		text, err := exec.CommandContext(ctx, s.binary, "flows", "--probe-socket="+socket).Output()
		if err != nil {
			return nil, fmt.Errorf("read the flows of an agent: %w", err)
		}
		err = flows.Decode(bytes.NewReader(text), func(r *flows.Record) error {
			records = append(records, *r)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read the flows of an agent: %w", err)
		}
	}
	return records, nil
}

// suggestion returns the policies that the tool suggests for the records.
func (s *show) suggestion(ctx context.Context, tool string, records []flows.Record) (string, error) {
	file, err := os.CreateTemp(filepath.Dir(s.watched.Dir()), "records-")
	if err != nil {
		return "", err
	}
	defer file.Close()
	if err := flows.Encode(file, records); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, toolTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, "suggest", "-n", "y", "-f", s.watched.Dir(), "--records", file.Name(), "--enforce")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	policies, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl netpol suggest: %w\n%s", err, &errs)
	}
	return string(policies), nil
}
