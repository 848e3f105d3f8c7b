package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// needLab skips a test where no lab can be built, unless skipping is forbidden.
func needLab(t *testing.T) {
	t.Helper()
	err := Check()
	switch {
	case err == nil:
	case errors.Is(err, errors.ErrUnsupported) && os.Getenv("NETNS_REQUIRED") == "":
		t.Skip(err)
	default:
		t.Fatal(err)
	}
}

// newLab returns a lab with pods x/a to z/c, spread over its nodes, that answer on port 80.
func newLab(t *testing.T, nodes int) (*Lab, []*Pod) {
	t.Helper()
	needLab(t)
	l, err := New(t.Context(), Config{Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	var pods []*Pod
	for i, namespace := range []string{"x", "y", "z"} {
		for j, name := range []string{"a", "b", "c"} {
			added, err := l.AddPods(t.Context(), NewPod(namespace, name, l.Nodes[(i+j)%nodes].Name, nil))
			if err != nil {
				t.Fatal(err)
			}
			if err := added[0].Serve(80); err != nil {
				t.Fatal(err)
			}
			pods = append(pods, added...)
		}
	}
	return l, pods
}

func names(pods []*Pod) []string {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}

func TestEveryPodReachesEveryOther(t *testing.T) {
	for _, nodes := range []int{1, 2} {
		_, pods := newLab(t, nodes)
		want := netpol.NewTruthTable(names(pods), true)
		for _, family := range []Family{IPv4, IPv6} {
			for _, proto := range []Proto{TCP, UDP, ICMP} {
				traffic := Traffic{Proto: proto, Port: 80, Family: family}
				got, err := Observe(t.Context(), pods, traffic, want)
				if err != nil {
					t.Fatalf("%d nodes, %s: %v", nodes, traffic, err)
				}
				if diff := want.Diff(got); diff != "" {
					t.Errorf("%d nodes, %s:\n%s", nodes, traffic, diff)
				}
			}
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, nodes := range []int{-1, 0, 3} {
		if err := (Config{Nodes: nodes}).Validate(); err == nil || !strings.Contains(err.Error(), "Nodes") {
			t.Errorf("Validate with %d nodes = %v, want an error about Nodes", nodes, err)
		}
	}
}

// patience is how long to wait for an answer that must arrive, even on a busy machine.
const patience = 20 * time.Second

func TestProbeOutcomes(t *testing.T) {
	l, pods := newLab(t, 1)
	from, to := pods[0], pods[1]
	const drop = `table inet lab { chain forward { type filter hook forward priority 0; meta l4proto { tcp, udp } th dport 81 drop; }; }`
	if _, err := l.Nodes[0].Run(t.Context(), drop, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		port    uint16
		timeout time.Duration
		want    Answer
	}{
		{80, patience, Answer{Connected, to.Name}},
		{81, 200 * time.Millisecond, Answer{TimedOut, ""}},
		{82, patience, Answer{Refused, ""}},
	} {
		for _, proto := range []Proto{TCP, UDP} {
			for _, addr := range to.Addrs {
				got, err := from.Probe(t.Context(), proto, netip.AddrPortFrom(addr, c.port), c.timeout)
				if err != nil || got != c.want {
					t.Errorf("%s to %s port %d: %v, %v, want %v", proto, addr, c.port, got, err, c.want)
				}
			}
		}
	}
}

func TestARemovedPodIsGoneAndItsAddressFree(t *testing.T) {
	l, pods := newLab(t, 1)
	node, client, old := l.Nodes[0], pods[0], pods[1]
	if err := l.Remove(t.Context(), old.Host); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Probe(t.Context(), TCP, netip.AddrPortFrom(client.Addrs[0], 80), patience); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a removed pod probes: %v", err)
	}
	object := NewPod("x", "new", node.Name, nil)
	object.Status.PodIPs = old.Object.Status.PodIPs
	added, err := l.AddPods(t.Context(), object)
	if err != nil {
		t.Fatal(err)
	}
	if err := added[0].Serve(80); err != nil {
		t.Fatal(err)
	}
	for _, addr := range old.Addrs {
		got, err := client.Probe(t.Context(), TCP, netip.AddrPortFrom(addr, 80), patience)
		if want := (Answer{Connected, "x/new"}); err != nil || got != want {
			t.Errorf("at %s: %v, %v, want %v", addr, got, err, want)
		}
	}
}

func TestAHostOutsideReachesThePodsOfBothNodes(t *testing.T) {
	l, pods := newLab(t, 2)
	client, err := l.AddHost(t.Context(), l.Nodes[0], "client", netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::9"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		for _, addr := range pod.Addrs {
			got, err := client.Probe(t.Context(), UDP, netip.AddrPortFrom(addr, 80), patience)
			if err != nil || got.From != pod.Name {
				t.Errorf("%s at %s: %v, %v", pod.Name, addr, got, err)
			}
		}
	}
}

func TestTheAgentHasOneCapabilityAndNoWayToMore(t *testing.T) {
	needLab(t)
	l, err := New(t.Context(), Config{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	script := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec cat /proc/self/status\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	agent, err := l.Nodes[0].StartAgent(AgentConfig{Binary: script})
	if err != nil {
		t.Fatal(err)
	}
	<-agent.Ended()
	fields := make(map[string]string)
	for line := range strings.Lines(agent.Log()) {
		key, value, _ := strings.Cut(line, ":")
		fields[key] = strings.TrimSpace(value)
	}
	const netAdmin = "0000000000001000"
	for key, want := range map[string]string{
		"CapEff": netAdmin, "CapPrm": netAdmin, "CapBnd": netAdmin, "NoNewPrivs": "1",
	} {
		if fields[key] != want {
			t.Errorf("%s is %q, want %q", key, fields[key], want)
		}
	}
}

func TestAnAgentThatEndsIsNotWaitedFor(t *testing.T) {
	needLab(t)
	l, err := New(t.Context(), Config{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	agent, err := l.Nodes[0].StartAgent(AgentConfig{Binary: "/bin/false"})
	if err != nil {
		t.Fatal(err)
	}

	if err := agent.WaitReady(t.Context()); err == nil || !strings.Contains(err.Error(), "it exited") {
		t.Errorf("WaitReady = %v, want that it exited", err)
	}
	if got := agent.ExitCode(); got != 1 {
		t.Errorf("exit status %d, want 1", got)
	}
}

func TestRawPacketsAreCapturedWhereTheyArrive(t *testing.T) {
	_, pods := newLab(t, 2)
	from, to := pods[0], pods[1]
	for _, family := range []Family{IPv4, IPv6} {
		length := map[Family]int{IPv4: 26, IPv6: 46}[family] // otherwise it is an ICMP error about the packet
		marked := func(packet []byte) bool { return len(packet) == length && bytes.HasSuffix(packet, []byte("marked")) }
		captures := make(map[*Pod]*Capture)
		for _, pod := range pods {
			capture, err := pod.Capture(marked)
			if err != nil {
				t.Fatal(err)
			}
			captures[pod] = capture
		}
		packet := make([]byte, 20, 64)
		packet[0], packet[8], packet[9] = 4<<4|5, 64, 253 // 253: for experiments
		copy(packet[12:], from.Addr(family).AsSlice())
		copy(packet[16:], to.Addr(family).AsSlice())
		if family == IPv6 {
			packet = make([]byte, 40, 64)
			packet[0], packet[5], packet[6], packet[7] = 6<<4, 6, 253, 64
			copy(packet[8:], from.Addr(family).AsSlice())
			copy(packet[24:], to.Addr(family).AsSlice())
		}
		if err := from.SendIP(append(packet, "marked"...)); err != nil {
			t.Fatal(err)
		}
		if err := Poll(t.Context(), func() (bool, error) { return captures[to].Count() == 1, nil }); err != nil {
			t.Errorf("%s: %d packets arrived, want 1", family, captures[to].Count())
		}
		for pod, capture := range captures {
			if pod != to && capture.Count() != 0 {
				t.Errorf("%s: %d packets arrived at %s", family, capture.Count(), pod.Name)
			}
		}
	}
}

func TestReceiveShowsWhatHooksLetThrough(t *testing.T) {
	l, pods := newLab(t, 1)
	node, from := l.Nodes[0], pods[0]
	const rules = `table inet test {
	chain input { type filter hook input priority 0; udp dport 1 drop; }
}
`
	if _, err := node.Run(t.Context(), rules, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	arrived := make(chan uint16, 10) // destination ports
	err := node.Receive(unix.IPPROTO_UDP, func(_, _ netip.Addr, payload []byte) { arrived <- binary.BigEndian.Uint16(payload[2:]) })
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []Family{IPv4, IPv6} {
		for _, port := range []uint16{1, 2} { // one link keeps their order
			conn, err := from.Dial(t.Context(), UDP, netip.AddrPortFrom(node.Addr(family), port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("name?")); err != nil {
				t.Fatal(err)
			}
		}
		if got := <-arrived; got != 2 {
			t.Errorf("%s: a packet to port %d arrived, want only one to port 2", family, got)
		}
	}

	if len(arrived) != 0 {
		t.Errorf("%d more packets arrived", len(arrived))
	}
}
