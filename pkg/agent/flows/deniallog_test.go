package flows

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// logging is a Recorder of a snapshot with the isolated pod shop/db and n open ones, and its log.
type logging struct {
	*Recorder
	snapshot *policy.Snapshot
	open     []netip.Addr
	lines    []string
}

func newLogging(n int) *logging {
	l := &logging{}
	l.Recorder, _, _ = newRecorder()
	l.denied.logger = funcr.New(func(_, line string) { l.lines = append(l.lines, line) }, funcr.Options{})
	l.would.logger = l.denied.logger
	chain := &policy.Chain{}
	for i := range namedPolicies + 3 {
		chain.Policies = append(chain.Policies, &policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: fmt.Sprintf("policy-%d", i)})
	}
	at := map[netip.Addr]*policy.Endpoint{db: {Namespace: "shop", Name: "db", Ingress: chain}}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
		at[addr] = &policy.Endpoint{Namespace: "x", Name: fmt.Sprintf("pod-%d", i)}
		l.open = append(l.open, addr)
	}
	l.snapshot = policy.New(policy.Model{Endpoints: policy.NewEndpoints(at), Audit: &policy.Audit{}})
	return l
}

// deny records a denied packet to the isolated pod.
func (l *logging) deny(src netip.Addr, at time.Duration) {
	decide(l.Recorder, tcp(src, db, 81), denied, l.snapshot, at)
}

// with returns the lines that have the text.
func (l *logging) with(text string) (found []string) {
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func TestALineNamesTheDenialAndAllPoliciesThatIsolate(t *testing.T) {
	l := newLogging(1)
	l.deny(l.open[0], 0)
	decide(l.Recorder, tcp(l.open[0], db, 80), allowed, l.snapshot, 0) // not logged
	l.drain()
	const head = `"level"=0 "msg"="Packet denied" "protocol"="TCP" "src"="10.1.0.0:40000" "srcPod"="x/pod-0" "dst"="10.0.0.2:81" "dstPod"="shop/db" "direction"="ingress" "tier"="networkpolicy" "reason"="isolated" "policies"=["shop/policy-0" `
	const tail = ` "shop/policy-19"] "morePolicies"=3`
	if len(l.lines) != 1 || !strings.HasPrefix(l.lines[0], head) || !strings.HasSuffix(l.lines[0], tail) {
		t.Errorf("logged %s\nwant   %s…%s", l.lines, head, tail)
	}
}

func TestALineNamesTheRule(t *testing.T) {
	l := newLogging(1)
	d := policy.Decision{Action: policy.Deny, Direction: policy.Egress, Tier: policy.AdminTier, Reason: policy.RuleMatched, Disputed: true,
		Policy: &policy.Ref{Kind: "AdminNetworkPolicy", Name: "guard"}}
	l.cfg.Why = func(*policy.Snapshot, policy.Query, time.Time) string { return "a.test expired" }
	decide(l.Recorder, tcp(l.open[0], outside, 80), d, l.snapshot, 0)
	l.drain()
	if got := l.with(`"tier"="admin" "reason"="rule matched" "policy"="AdminNetworkPolicy/guard" "rule"=0 "disputed"=true "names"="a.test expired"`); len(got) != 1 {
		t.Errorf("logged %s", l.lines)
	}
}

// A multicast is denied as for each of its receivers, of which its destination is none.
func TestADenialOfNoPod(t *testing.T) {
	l := newLogging(0)
	decide(l.Recorder, tcp(outside, netip.MustParseAddr("224.0.0.9"), 80), denied, l.snapshot, 0)
	l.drain()
	if got := l.with(`"dst"="224.0.0.9:80" "dstPod"="" "direction"="ingress" "tier"="networkpolicy" "reason"="isolated" "policy"=`); len(got) != 1 {
		t.Errorf("logged %s", l.lines)
	}
}

func TestNoSecondHasMoreThanTenDenials(t *testing.T) {
	l := newLogging(500)
	const seconds = 5
	for i := range seconds * 1000 {
		l.deny(l.open[i%len(l.open)], time.Duration(i)*time.Millisecond)
		l.drain()
	}
	if want := seconds * denialsPerSecond; len(l.lines) != want || len(l.denials.latest) != want {
		t.Errorf("%d lines and %d records in %d seconds, want %d", len(l.lines), len(l.denials.latest), seconds, want)
	}
	for i, last := range l.denials.latest[denialsPerSecond:] {
		if first := l.denials.latest[i]; last.at-first.at < time.Second {
			t.Fatalf("%d denials within %s", denialsPerSecond+1, last.at-first.at)
		}
	}
}

func TestAScannerHidesNoOtherPod(t *testing.T) {
	l := newLogging(20)
	scanners, others := l.open[:4], l.open[4:]
	at := time.Duration(0)
	scan := func() {
		for range 100 {
			for _, scanner := range scanners {
				l.deny(scanner, at)
			}
			l.drain()
		}
	}
	scan()
	for i, addr := range others {
		l.deny(addr, at)
		l.drain()
		if got := l.with(`"srcPod"="x/` + l.snapshot.Endpoint(addr).Name + `"`); len(got) != 1 {
			t.Errorf("pod %d has %d lines, want 1", i, len(got))
		}
		scan()
		at += time.Second / (denialsPerSecond - repeatsPerSecond)
	}
}

func TestWhatIsNotLoggedIsSaidEveryTenSeconds(t *testing.T) {
	l := newLogging(2)
	now := time.Duration(0)
	l.since = func() time.Duration { return now }
	forged := netip.MustParseAddr("198.51.100.1")
	for i := range 1000 {
		l.deny(l.open[0], 0)
		if i < 500 {
			l.deny(forged, 0)
			forged = forged.Next()
		}
		l.drain()
	}
	l.byKernel(packet.Class{Src: l.open[1], Dst: db, Proto: packet.TCP, Port: 81}, denied, l.snapshot, 7)
	if got := l.with("not logged"); len(got) > 0 {
		t.Errorf("said at once: %s", got)
	}
	before := len(l.lines)
	if before == 0 {
		t.Fatal("nothing is logged")
	}
	now = denialInterval + time.Second
	l.drain()
	want := fmt.Sprintf(`"msg"="Denied packets were not logged" "packets"=%d "interval"="10s" "sources"=3 "most"=["from x/pod-0: `, 1507-before)
	if got := l.with("not logged"); len(got) != 1 || !strings.Contains(got[0], want) || !strings.HasSuffix(got[0], ` "from x/pod-1: 7"]`) {
		t.Errorf("got %s\nwant %s", got, want)
	}
	now += 10 * denialInterval
	l.drain()
	if got := l.with("not logged"); len(got) != 1 {
		t.Errorf("said again though nothing was denied: %s", got)
	}
	l.deny(l.open[0], now)
	l.drain()
	if len(l.lines) != before+2 {
		t.Error("no line after an interval")
	}
}

// Audited denials have a limit of their own, and are no records of denied packets.
func TestAuditedDenialsAreLoggedBesideDenials(t *testing.T) {
	l := newLogging(100)
	for i, addr := range l.open {
		l.decide(tcp(addr, db, uint16(i)), &allowed, l.snapshot, &denied, l.epoch)
	}
	l.deny(l.open[0], 0)
	l.drain()
	if audited, denials := l.with("Packet would be denied by audited policies"), l.with("Packet denied"); len(audited) != denialsPerSecond || len(denials) != 1 {
		t.Errorf("%d packets are logged that would be denied, want %d; %d denied ones, want 1", len(audited), denialsPerSecond, len(denials))
	}
	if len(l.denials.latest) != 1 {
		t.Errorf("%d denials are recorded, want 1", len(l.denials.latest))
	}
}
