package netns

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestFlowBytes reads the bytes of open connections, which the kernel counts once that is
// enabled.
func TestFlowBytes(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	socket := t.TempDir() + "/probe"
	node := c.Nodes[0]
	c.Start(t, "--probe-socket="+socket)
	c.Apply(t, "policies", letsDB)
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"))
	const port, sent = 4000, 50
	to := netip.AddrPortFrom(c.Hosts["x/web"].Addrs[0], port)
	bytes := func() (n *uint64) {
		output, err := node.Run(t.Context(), "", labtest.AgentBinary, "flows", "--probe-socket", socket)
		if err == nil {
			err = flows.Decode(strings.NewReader(output), func(r *flows.Record) error {
				if r.Type == flows.TypeFlow && r.Source.Pod == "db" && r.Port == port {
					n = r.Bytes
				}
				return nil
			})
		}
		if err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		return n
	}
	datagrams(t, c.Hosts["y/db"], to, 1)
	if n := bytes(); n != nil {
		t.Errorf("%d bytes, and the kernel does not count them", *n)
	}
	if output, err := node.Run(t.Context(), "", "sh", "-c", "echo 1 > /proc/sys/net/netfilter/nf_conntrack_acct"); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	datagrams(t, c.Hosts["y/db"], to, sent)

	const least = sent * (20 + 8) // headers of IPv4 and UDP
	var n *uint64
	if labtest.Within(t, func() bool { n = bytes(); return n != nil && *n >= least }) != nil {
		t.Errorf("bytes %v of %d datagrams, want at least %d", n, sent, least)
	}
}

// TestFlowRecords reads an agent's decisions from its socket and its log while a pod sends
// to more ports than it may have flows. Flows of other pods stay, and verdicts do not
// change.
func TestFlowRecords(t *testing.T) {
	const scanned, share = 1500, 512
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	socket := t.TempDir() + "/probe"
	node := c.Nodes[0]
	agent := c.Start(t, "--probe-socket="+socket, "--flow-log")[0]
	c.Apply(t, "policies", letsDB)
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"))
	web := c.Hosts["x/web"].Addrs[0]
	for port := range uint16(scanned) {
		datagrams(t, c.Hosts["y/web"], netip.AddrPortFrom(web, 1000+port), 1)
	}
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"))

	read := func() (found map[string]bool, scans int, s *flows.Summary) {
		output, err := node.Run(t.Context(), "", labtest.AgentBinary, "flows", "--probe-socket", socket)
		if err != nil {
			t.Fatalf("%v: %s", err, output)
		}
		found = map[string]bool{}
		if err := flows.Decode(strings.NewReader(output), func(r *flows.Record) error {
			switch {
			case r.Type == flows.TypeAgent:
				s = r.Summary
			case r.Type == flows.TypeFlow && r.Port >= 1000 && r.Source.Pod == "web":
				scans++
			case r.Type == flows.TypeFlow && r.Protocol == "TCP" && r.Policy != nil:
				found[fmt.Sprintf("%s/%s -> %s/%s %s by %s", r.Source.Namespace, r.Source.Pod, r.Destination.Namespace, r.Destination.Pod, r.Verdict, r.Policy.Name)] = true
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found, scans, s
	}
	var found map[string]bool
	var scans int
	var s *flows.Summary
	want := []string{"y/db -> x/web allow by web", "y/web -> x/web deny by web"}
	if labtest.Within(t, func() bool {
		found, scans, s = read()
		return found[want[0]] && found[want[1]] && s.Evicted > 0
	}) != nil {
		t.Errorf("flows %v, want %q; %+v", found, want, s)
	}
	if scans == 0 || scans > share || s.Flows > s.MaxFlows {
		t.Errorf("%d flows of the pod that scans, want at most %d; %+v", scans, share, s)
	}
	// The log is written every ten seconds.
	logged, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := lab.Poll(logged, func() (bool, error) {
		return strings.Contains(agent.Log(), `{"type":"flow","node":"`), nil
	}); err != nil {
		t.Errorf("the agent has not logged its flows: %v", err)
	}
	labtest.WaitReady(t, agent)
}

// TestHardRandomClasses: a pod sends a million packets, each of another class, in random
// order. Each is denied, another pod can still connect, and the agent's memory is bounded.
// Decisions that are in no flow are counted.
func TestHardRandomClasses(t *testing.T) {
	labtest.NeedHard(t)
	const (
		servers, ports = 16, 62500
		classes        = servers * ports
		batch          = 500 // so that none exceeds the pod's share of the queue
		share          = 512 // flows of one pod
		mostMemory     = 32 << 20
	)
	pods := []string{"y/db@1 app=db", "y/web@1 app=web"}
	for i := range servers {
		pods = append(pods, fmt.Sprintf("x/web-%d@1 app=web", i))
	}
	c := newCluster(t, 1, pods...)
	socket := t.TempDir() + "/probe"
	agent := c.Start(t, "--probe-socket="+socket)[0]
	c.Apply(t, "policies", letsDB)
	bystander := func() {
		t.Helper()
		c.Expect(t, labtest.Yes("y/db", "x/web-0", "tcp/80"), labtest.No("y/web", "x/web-0", "tcp/80"))
	}
	bystander()
	conn, err := c.Hosts["y/web"].ListenPacket(netip.AddrPortFrom(c.Hosts["y/web"].Addr(lab.IPv4), 0))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	counter := labtest.NewCounter(t, c.Nodes[0], "udp dport >= 3000 udp dport < 65500")
	memory := func(m lab.Metrics) float64 { return m.Sum("process_resident_memory_bytes") }
	before := labtest.Metrics(t, agent)
	maxMemory := memory(before)
	denied := func(m lab.Metrics) float64 {
		return m.Sum(answered, "protocol", "UDP", "verdict", "drop") - before.Sum(answered, "protocol", "UDP", "verdict", "drop")
	}
	started := time.Now()
	for i, class := range rand.New(rand.NewPCG(1, 2)).Perm(classes) {
		to := netip.AddrPortFrom(c.Hosts[fmt.Sprintf("x/web-%d", class%servers)].Addr(lab.IPv4), uint16(3000+class/servers))
		if _, err := conn.WriteToUDPAddrPort([]byte("random"), to); err != nil {
			t.Fatal(err)
		}
		if (i+1)%batch > 0 {
			continue
		}
		if got := labtest.Until(t, agent, float64(i+1), denied); got != float64(i+1) {
			t.Fatalf("%v of %d packets are denied", got, i+1)
		}
		if (i+1)%(classes/20) == 0 {
			maxMemory = max(maxMemory, memory(labtest.Metrics(t, agent)))
			bystander()
		}
	}
	took := time.Since(started)
	if left := counter.Left(t); left > 0 {
		t.Errorf("%d packets passed", left)
	}
	if grown := maxMemory - memory(before); grown > mostMemory {
		t.Errorf("the agent has %v bytes more than before", grown)
	}
	output, err := c.Nodes[0].Run(t.Context(), "", labtest.AgentBinary, "flows", "--probe-socket", socket)
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	flowsOfPod, summary := 0, &flows.Summary{}
	if err := flows.Decode(strings.NewReader(output), func(r *flows.Record) error {
		switch {
		case r.Type == flows.TypeAgent:
			summary = r.Summary
		case r.Type == flows.TypeFlow && r.Source.Namespace == "y" && r.Source.Pod == "web" && r.Protocol == "UDP":
			flowsOfPod++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if flowsOfPod > share || summary.Flows > summary.MaxFlows || summary.Evicted+summary.Lost < classes-share {
		t.Errorf("%d flows of the pod, want %d at most; evicted and lost are to be %d at least: %+v", flowsOfPod, share, classes-share, summary)
	}
	t.Logf("%d classes in %v; memory of the agent: %.0f MB, at most %.0f MB; %d flows of the pod, %d evicted, %d decisions in no flow",
		classes, took, memory(before)/1e6, maxMemory/1e6, flowsOfPod, summary.Evicted, summary.Lost)
}
