package labtest

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// How long a probe waits for an answer before it counts as blocked, in the first and in the
// last attempt.
const (
	Silence    = 200 * time.Millisecond
	maxSilence = 5 * time.Second
)

// sayAfter is when an unexpected outcome is logged, long before it fails the test: go test -v shows at
// once what a test waits for.
const sayAfter = 2 * time.Second

// Expectation is the expected outcome of a probe.
type Expectation struct {
	from, to string // names of hosts; to may be an address
	proto    lab.Proto
	port     uint16
	reaches  bool
	refused  bool // otherwise silence is expected of what does not reach
}

// Yes expects an answer and No expects silence, for "tcp/80", "udp/80" or "icmp". Refused expects
// a reset or an ICMP error. NewExpectation expects an answer if reaches is set.
func Yes(from, to, what string) Expectation { return NewExpectation(from, to, what, true) }
func No(from, to, what string) Expectation  { return NewExpectation(from, to, what, false) }

func Refused(from, to, what string) Expectation {
	e := No(from, to, what)
	e.refused = true
	return e
}

func NewExpectation(from, to, what string, reaches bool) Expectation {
	proto, number, _ := strings.Cut(what, "/")
	var port uint16
	fmt.Sscan(number, &port)
	return Expectation{from: from, to: to, proto: lab.Proto(strings.ToUpper(proto)), port: port, reaches: reaches}
}

func (e Expectation) outcome() lab.Outcome {
	switch {
	case e.reaches:
		return lab.Connected
	case e.refused:
		return lab.Refused
	}
	return lab.TimedOut
}

// met reports whether o is as expected. If the cluster's agents reject, what is not expected to be
// reached may be refused, too.
func (e Expectation) met(o lab.Outcome, rejects bool) bool {
	return o == e.outcome() || rejects && !e.reaches && o == lab.Refused
}

func (e Expectation) String() string {
	verb := map[bool]string{true: "reaches", false: "does not reach"}[e.reaches]
	return fmt.Sprintf("%s %s %s at %s/%d", e.from, verb, e.to, e.proto, e.port)
}

// Expect probes over both families, and repeats unexpected probes until a change had time
// to become effective. When everything is as expected it probes once more, because the
// first probes may have been made before the change. At least one expectation should become
// true through the change, or Expect does not wait for it.
func (c *Cluster) Expect(t *testing.T, expectations ...Expectation) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), ChangeTimeout)
	defer cancel()
	c.probeAll(ctx, t, expectations)
	if t.Failed() {
		return
	}
	c.probeAll(ctx, t, expectations)
}

// probeAll makes all probes concurrently.
func (c *Cluster) probeAll(ctx context.Context, t *testing.T, expectations []Expectation) {
	t.Helper()
	var wg sync.WaitGroup
	for _, e := range expectations {
		for _, to := range c.Addrs(t, e.to) {
			wg.Go(func() {
				if got := c.probe(ctx, t, e, to); !e.met(got, c.Rejects) {
					t.Errorf("want: %s (%s); got: %s", e, to, got)
				}
			})
		}
	}
	wg.Wait()
}

// probe retries until the outcome is as expected or ctx ends. Each attempt waits longer for
// an answer, so that a change is noticed soon and a busy machine has time.
func (c *Cluster) probe(ctx context.Context, t *testing.T, e Expectation, to netip.Addr) lab.Outcome {
	var got lab.Answer
	timeout, begun, said := Silence, time.Now(), false
	lab.Poll(ctx, func() (bool, error) {
		var err error
		got, err = c.Hosts[e.from].Probe(ctx, e.proto, netip.AddrPortFrom(to, e.port), timeout)
		if err != nil {
			t.Errorf("%s (%s): %v", e, to, err)
			return false, err
		}
		if e.reaches && got.Outcome == lab.TimedOut {
			timeout = min(2*timeout, maxSilence)
		}
		met := e.met(got.Outcome, c.Rejects)
		if !met && !said && time.Since(begun) >= sayAfter {
			said = true
			t.Logf("still waiting: want: %s (%s); got: %s", e, to, got.Outcome)
		}
		return met, nil
	})
	return got.Outcome
}

// WaitLog waits until an agent has logged a text. Its log may be read later than its
// answers.
func WaitLog(t *testing.T, agent *lab.Agent, text string) {
	t.Helper()
	if err := Within(t, func() bool { return strings.Contains(agent.Log(), text) }); err != nil {
		t.Errorf("no %q in the log (%v):\n%s", text, err, agent.Log())
	}
}

// Within waits until the condition holds, or until a change had time to become effective.
func Within(t *testing.T, condition func() bool) error {
	ctx, cancel := context.WithTimeout(t.Context(), ChangeTimeout)
	defer cancel()
	return lab.Poll(ctx, func() (bool, error) { return condition(), nil })
}
