package netns

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// changing answers each query differently: 1 to 30 addresses of a pool, by a chain of aliases, with a
// TTL of 1 to 60 seconds. Of 50 queries one is lost, and names of a search domain do not exist.
type changing struct {
	mu     sync.Mutex
	random *rand.Rand
	pool   []netip.Addr
}

func (c *changing) answer(m dnsmessage.Message) (answer dnsmessage.Message, lost bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := m.Questions[0]
	answer = dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
	if c.random.IntN(50) == 0 {
		return answer, true
	}
	if strings.HasSuffix(strings.ToLower(q.Name.String()), ".local.") {
		answer.RCode = dnsmessage.RCodeNameError
		return answer, false
	}
	header := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1 + c.random.Uint32N(60)}
	for i := range c.random.IntN(4) {
		alias := dnsmessage.MustNewName(fmt.Sprintf("edge-%d.cdn.test.", i))
		answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: alias}})
		header.Name = alias
	}
	for range 1 + c.random.IntN(30) {
		switch addr := c.pool[c.random.IntN(len(c.pool))]; {
		case addr.Is4() && q.Type == dnsmessage.TypeA:
			answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
			answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	return answer, false
}

// soakNames counts what the pods of TestSoakOfNames do.
type soakNames struct {
	*cluster
	resolver       netip.Addr
	opened, failed atomic.Int64
	denied, passed atomic.Int64 // connections to an address that no name gave
	kept, ended    atomic.Int64 // connections that live longer than their name
	lost           atomic.Int64 // look-ups without an answer or an address
	mu             sync.Mutex
	times          map[string][]time.Duration // of the first connection after an answer, by pod
}

// TestSoakOfNames changes the answers of a resolver at every query for the time SOAK, while pods look
// names up, connect to what they got, keep some connections and try what no name gave, and while the
// agent is upgraded and killed. SOAK_PODS, SOAK_POOL and SOAK_RATE (of each pod, a second) scale it.
func TestSoakOfNames(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("takes as long as SOAK says; make soak RUN=names runs it")
	}
	pods, pool, rate := number(t, "SOAK_PODS", 10), number(t, "SOAK_POOL", 100), number(t, "SOAK_RATE", 5)
	s := newSoakOfNames(t, pods, pool)
	args := []string{withClusterPolicies, kubeconfig(t), "--snapshot-cache=" + filepath.Join(t.TempDir(), "snapshot"), "--dns-resolvers=" + s.resolver.String()}
	turn := uint16(0)
	start := func() *lab.Agent {
		turn++
		agent := s.startAgent(t, lab.AgentConfig{Args: args, Metrics: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 9080+turn%3)})
		labtest.WaitReady(t, agent)
		return agent
	}
	agent := start()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var running sync.WaitGroup
	for i := range pods {
		running.Go(func() {
			s.client(ctx, rand.New(rand.NewPCG(uint64(i), 0)), fmt.Sprintf("x/web-%d", i), time.Second/time.Duration(rate))
		})
	}
	running.Go(func() {
		s.client(ctx, rand.New(rand.NewPCG(uint64(pods), 0)), "x/eve", time.Second/time.Duration(rate))
	})
	upgrades, kills := 0, 0
	for pause := max(duration/8, 10*time.Second); sleep(ctx, pause); {
		if upgrades <= kills {
			next := start()
			if err := agent.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			agent = next
			upgrades++
		} else {
			agent.Kill()
			agent = start()
			kills++
		}
	}
	running.Wait()
	s.report(t, upgrades, kills)
}

// sleep reports whether ctx goes on after a pause.
func sleep(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(otherwise)))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func newSoakOfNames(t *testing.T, pods, pool int) *soakNames {
	t.Helper()
	specs := []string{"x/dns@2 app=dns", "x/eve@1 app=eve"}
	for i := range pods {
		specs = append(specs, fmt.Sprintf("x/web-%d@1 app=web", i))
	}
	s := &soakNames{cluster: newCluster(t, 2, specs...), times: make(map[string][]time.Duration)}
	answers := &changing{random: rand.New(rand.NewPCG(0, 0))}
	v4, v6 := netip.MustParseAddr("198.18.0.0"), netip.MustParseAddr("2001:db8:18::")
	for range pool / 2 {
		v4, v6 = v4.Next(), v6.Next()
		answers.pool = append(answers.pool, v4, v6)
	}
	var texts []string
	for _, addr := range answers.pool {
		texts = append(texts, addr.String())
	}
	s.addHost(t, "pool", texts...)
	s.addHost(t, "never", "203.0.113.1", "2001:db8::1")
	r := newResolver(t, s.Hosts["x/dns"])
	r.changing = answers.answer
	s.resolver = r.host.Addr(lab.IPv4)
	serveAPI(t, s.Nodes[0], withClusterPolicy(t, s.api(t), allowNames(`"*.example.test"`)))
	return s
}

// client is what a pod does until ctx ends.
func (s *soakNames) client(ctx context.Context, random *rand.Rand, pod string, pause time.Duration) {
	host := s.Hosts[pod]
	library := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		proto := lab.UDP
		if strings.HasPrefix(network, "tcp") {
			proto = lab.TCP
		}
		return host.Dial(ctx, proto, netip.AddrPortFrom(s.resolver, dnsPort))
	}}
	var kept []net.Conn
	for i := 0; sleep(ctx, pause); i++ {
		if i%10 == 0 {
			_, _ = library.LookupNetIP(ctx, "ip", "www.example.test.search.local.")
		}
		connects := s.connectByName(ctx, random, host, library)
		if !connects { // an answer was lost, or an agent has crashed: once more, as clients do
			connects = s.connectByName(ctx, random, host, library)
		}
		if !connects {
			s.failed.Add(1)
		}
		if i%20 == 0 {
			if addrs, err := library.LookupNetIP(ctx, "ip", "kept.example.test."); err == nil && len(addrs) > 0 {
				if conn, err := host.Dial(ctx, lab.TCP, netip.AddrPortFrom(addrs[0].Unmap(), 80)); err == nil {
					kept = append(kept, conn)
				}
			}
		}
		if pod != "x/eve" && i%5 == 0 {
			s.denied.Add(1)
			if answer, err := host.Probe(context.Background(), lab.TCP, netip.AddrPortFrom(s.Hosts["never"].Addr([]lab.Family{lab.IPv4, lab.IPv6}[i/5%2]), 80), 200*time.Millisecond); err == nil && answer.Outcome == lab.Connected {
				s.passed.Add(1)
			}
		}
	}
	for _, conn := range kept {
		s.kept.Add(1)
		conn.SetDeadline(time.Now().Add(answerTime))
		if _, err := fmt.Fprintln(conn, "still here"); err != nil {
			s.ended.Add(1)
		} else if err := echoes(conn, "still here"); err != nil {
			s.ended.Add(1)
		}
		conn.Close()
	}
}

// echoes reads until a line, after the greeting, returns.
func echoes(conn net.Conn, line string) error {
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if lines.Text() == line {
			return nil
		}
	}
	return cmp.Or(lines.Err(), io.EOF)
}

// connectByName looks a name up, in letters of random case, and connects to the first of its addresses.
func (s *soakNames) connectByName(ctx context.Context, random *rand.Rand, host *lab.Host, library *net.Resolver) bool {
	name := fmt.Appendf(nil, "www-%d.example.test.", random.IntN(20))
	for i := range name {
		if name[i] >= 'a' && name[i] <= 'z' && random.IntN(2) == 0 {
			name[i] -= 'a' - 'A'
		}
	}
	addrs, err := library.LookupNetIP(ctx, "ip", string(name))
	if err != nil || len(addrs) == 0 {
		s.lost.Add(1)
		return true
	}
	begin := time.Now()
	answer, err := host.Probe(context.Background(), lab.TCP, netip.AddrPortFrom(addrs[0].Unmap(), 80), answerTime)
	took := time.Since(begin)
	s.opened.Add(1)
	if err != nil || answer.Outcome != lab.Connected {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	who := "selected"
	if host.Name == "x/eve" {
		who = "not selected"
	}
	s.times[who] = append(s.times[who], took)
	return true
}

func (s *soakNames) report(t *testing.T, upgrades, kills int) {
	t.Helper()
	t.Logf("%d connections opened, %d failed twice; %d of %d to addresses that no name gave passed; %d of %d kept ones ended; %d look-ups without an address; %d upgrades, %d kills",
		s.opened.Load(), s.failed.Load(), s.passed.Load(), s.denied.Load(), s.ended.Load(), s.kept.Load(), s.lost.Load(), upgrades, kills)
	for who, times := range s.times {
		slices.Sort(times)
		t.Logf("first connection after the answer, pods that are %s: %d, p50 %v, p99 %v", who, len(times), times[len(times)/2], times[len(times)*99/100])
	}
	if s.failed.Load() > 0 || s.passed.Load() > 0 || s.ended.Load() > 0 || s.opened.Load() == 0 {
		t.Error("connections failed, ended, or passed that must not")
	}
}
