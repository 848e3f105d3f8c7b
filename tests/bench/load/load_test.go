package load

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"sigs.k8s.io/kube-network-policies/tests/lab"
	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// newPods returns a client and a server behind one node. The test is skipped where
// a lab cannot be, unless that is forbidden.
func newPods(t *testing.T) (client, server *lab.Pod) {
	t.Helper()
	labtest.Need(t)
	l, err := lab.New(t.Context(), lab.Config{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	pods, err := l.AddPods(t.Context(), lab.NewPod("x", "client", "node-1", nil), lab.NewPod("x", "server", "node-1", nil))
	if err != nil {
		t.Fatal(err)
	}
	return pods[0], pods[1]
}

func at(pod *lab.Pod, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(pod.Addr(lab.IPv4), port)
}

func TestEveryFlowArrives(t *testing.T) {
	client, server := newPods(t)
	sink, err := OpenSink(server.NetNS(), at(server, 9000))
	if err != nil {
		t.Fatal(err)
	}
	flows, err := OpenFlows(client.NetNS(), at(server, 9000))
	if err != nil {
		t.Fatal(err)
	}
	defer flows.Close()
	want := 0
	for _, run := range []struct {
		count int
		send  func(count int) (time.Time, error)
	}{
		{1, func(count int) (time.Time, error) { return flows.Send(count, 0) }},
		{70000, func(count int) (time.Time, error) { return flows.Send(count, 0) }},
		{1000, func(count int) (time.Time, error) { return flows.Send(count, 100000) }},
		{100, flows.SendFromSockets},
	} {
		if _, err := run.send(run.count); err != nil {
			t.Fatal(err)
		}
		want += run.count
		got := 0
		if err := lab.Poll(t.Context(), func() (bool, error) { got, _ = sink.Received(); return got >= want, nil }); err != nil {
			t.Fatalf("%d of %d flows arrived: %v", got, want, err)
		}
		if got != want {
			t.Errorf("%d flows arrived, and %d were sent", got, want)
		}
	}
	if waiting, err := sink.Waiting(); waiting || err != nil {
		t.Errorf("all have arrived and been counted, and some wait: %v, %v", waiting, err)
	}
	if err := sink.Close(); err != nil {
		t.Error(err)
	}
}

// Each datagram is a flow of its own until all have been sent.
func TestFlowsAreUnique(t *testing.T) {
	f := &Flows{to: netip.MustParseAddrPort("192.0.2.1:9000"), batch: []ipv4.Message{{Buffers: [][]byte{make([]byte, datagramLen)}}}}
	seen := make(map[uint32]bool)
	for ; f.next < ports*SinkPorts; f.next++ {
		f.address(f.batch)
		header := f.batch[0].Buffers[0]
		flow, to := binary.BigEndian.Uint32(header), binary.BigEndian.Uint16(header[2:])
		if seen[flow] || to < 9000 || to >= 9000+SinkPorts {
			t.Fatalf("flow %d: %x seen before: %v, to port %d", f.next, flow, seen[flow], to)
		}
		seen[flow] = true
	}
}

func TestConnect(t *testing.T) {
	client, server := newPods(t)
	acceptor, err := OpenAcceptor(server.NetNS(), at(server, 80))
	if err != nil {
		t.Fatal(err)
	}
	for _, clients := range []int{1, 16} {
		took, err := Connect(client.NetNS(), at(server, 80), clients, 50*time.Millisecond)
		if err != nil || len(took) < clients {
			t.Errorf("%d clients: %d connections, %v", clients, len(took), err)
		}
		for _, d := range took {
			if d <= 0 {
				t.Fatalf("%d clients: a connection took %s", clients, d)
			}
		}
	}
	if err := acceptor.Close(); err != nil {
		t.Error(err)
	}
	if took, err := Connect(client.NetNS(), at(server, 80), 1, 50*time.Millisecond); err == nil {
		t.Errorf("%d connections to a port that is closed", len(took))
	}
}
