package load

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/ipv4"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// newPods returns a client and a server behind one node. The test is skipped where no lab
// can be built, unless skipping is forbidden.
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
	meter, err := OpenMeter(server.NetNS(), 9000, Drop)
	if err != nil {
		t.Fatal(err)
	}
	defer meter.Close()
	flows, err := OpenFlows(client.NetNS())
	if err != nil {
		t.Fatal(err)
	}
	defer flows.Close()
	want := 0
	for _, run := range []struct{ count, perSecond int }{{1, 0}, {10000, 0}, {1000, 100000}} {
		if _, err := flows.Send(One(at(server, 9000)), run.count, run.perSecond); err != nil {
			t.Fatal(err)
		}
		want += run.count
		got := 0
		if err := lab.Poll(t.Context(), func() (_ bool, err error) { got, err = meter.Packets(); return got >= want, err }); err != nil {
			t.Fatalf("%d of %d flows arrived: %v", got, want, err)
		}
		if got != want {
			t.Errorf("%d flows arrived, and %d were sent", got, want)
		}
	}
}

// Each datagram is a new flow until all source ports have been used, and has the right
// destination.
func TestFlowsAreUnique(t *testing.T) {
	batch := []ipv4.Message{{Buffers: [][]byte{make([]byte, datagramLen)}, Addr: &net.IPAddr{IP: make(net.IP, 4)}}}
	f, to := &Flows{}, netip.MustParseAddrPort("192.0.2.1:9000")
	seen := make(map[uint16]bool)
	for range Ports {
		f.address(batch, One(to))
		header := batch[0].Buffers[0]
		from, port := binary.BigEndian.Uint16(header), binary.BigEndian.Uint16(header[2:])
		if seen[from] || from < firstPort || port != to.Port() || batch[0].Addr.String() != to.Addr().String() {
			t.Fatalf("flow %d: from %d, seen before: %v, to %s, port %d", f.next, from, seen[from], batch[0].Addr, port)
		}
		seen[from] = true
	}
}

func TestConnect(t *testing.T) {
	client, server := newPods(t)
	acceptor, err := OpenAcceptor(server.NetNS(), 80)
	if err != nil {
		t.Fatal(err)
	}
	for _, clients := range []int{1, 16} {
		connections, err := Connect(client.NetNS(), Clients{Count: clients, To: One(at(server, 80)), During: 50 * time.Millisecond})
		if err != nil || len(connections.Took) < clients || connections.InTime > len(connections.Took) {
			t.Errorf("%d clients: %d connections, %d in time, %v", clients, len(connections.Took), connections.InTime, err)
		}
		for _, d := range connections.Took {
			if d <= 0 {
				t.Fatalf("%d clients: a connection took %s", clients, d)
			}
		}
	}

	if err := acceptor.Close(); err != nil {
		t.Error(err)
	}
	if connections, err := Connect(client.NetNS(), Clients{Count: 1, To: One(at(server, 80)), During: 50 * time.Millisecond}); err == nil {
		t.Errorf("%d connections to a port that is closed", len(connections.Took))
	}
}

// A client that pauses does not begin a connection early.
func TestConnectPauses(t *testing.T) {
	client, server := newPods(t)
	acceptor, err := OpenAcceptor(server.NetNS(), 80)
	if err != nil {
		t.Fatal(err)
	}
	defer acceptor.Close()

	const during, pause = 100 * time.Millisecond, 10 * time.Millisecond
	connections, err := Connect(client.NetNS(), Clients{Count: 1, To: One(at(server, 80)), Pause: pause, During: during})
	if err != nil || len(connections.Took) == 0 || len(connections.Took) > int(during/pause) {
		t.Errorf("%d connections, %v, want 1 to %d", len(connections.Took), err, during/pause)
	}
}
