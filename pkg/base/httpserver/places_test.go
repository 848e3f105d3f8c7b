package httpserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// clusterPods knows pods of this node, in 10.1.0.0/24 and fd00:1::/64, and of another node.
func clusterPods(addr netip.Addr) (pod string, onNode bool) {
	known := map[string]string{"10.1.0.2": "x/a", "fd00:1::2": "x/a", "10.1.0.3": "x/b", "fd00:1::3": "x/b", "fd00:2::2": "y/c"}
	in := func(p string) bool { return netip.MustParsePrefix(p).Contains(addr) }
	return known[addr.String()], in("10.1.0.0/24") || in("fd00:1::/64")
}

// A client cannot choose its identity.
func TestClients(t *testing.T) {
	for _, tc := range []struct {
		a, b         string
		same, onNode bool // onNode is about a
	}{
		{"192.0.2.1", "192.0.2.2", false, false},
		{"192.0.2.1", "::ffff:192.0.2.1", true, false},
		{"2001:db8::1", "2001:db8::2", true, false},
		{"2001:db8::1", "2001:db8:0:1::1", false, false},
		{"fe80::1%eth0", "fe80::2%eth0", true, true},
		{"fe80::1%eth0", "fe80:0:0:1::2%eth0", false, true},
		{"fe80::1%eth0", "fe80::1%eth1", false, true},
		{"169.254.1.1", "169.254.7.7", true, true},
		{"10.1.0.2", "fd00:1::2", true, true},   // one pod
		{"10.1.0.2", "10.1.0.3", false, true},   // two pods
		{"fd00:1::2", "fd00:1::3", false, true}, // two pods
		{"fd00:1::8", "fd00:1::9", true, true},  // no known pod
		{"fd00:2::2", "fd00:2::3", false, false},
	} {
		t.Run(tc.a+" "+tc.b, func(t *testing.T) {
			a, onNode := identify(netip.MustParseAddr(tc.a), clusterPods)
			b, _ := identify(netip.MustParseAddr(tc.b), clusterPods)
			if same := a == b; same != tc.same || onNode != tc.onNode {
				t.Errorf("%+v and %+v, of the node's pods: %v; want one client: %v, of the node's pods: %v", a, b, onNode, tc.same, tc.onNode)
			}
		})
	}
}

// fakeConn is the connection of a client.
type fakeConn struct {
	net.Conn
	at, from string
	closed   *bool
}

func tcpAddr(s string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s))
}

func (c fakeConn) LocalAddr() net.Addr  { return tcpAddr(c.at) }
func (c fakeConn) RemoteAddr() net.Addr { return tcpAddr(c.from) }
func (c fakeConn) Close() error         { *c.closed = true; return nil }

// fixture gives places to connections of clients to 192.0.2.1.
type fixture struct{ *listener }

func newFixture() *fixture {
	return &fixture{newListener(nil, clusterPods, nil, New(nil, nil, prometheus.NewRegistry()).refused)}
}

// connect opens a connection from an address. It returns nil if the connection is refused,
// and a flag that is set when it is closed.
func (f *fixture) connect(from string) (*connection, *bool) {
	closed := new(bool)
	c := &connection{Conn: fakeConn{at: "192.0.2.1:9080", from: net.JoinHostPort(from, "4000"), closed: closed}}
	if g, identity := f.groupOf(c); !g.places.admit(c, identity) {
		return nil, closed
	}
	return c, closed
}

// Whatever addresses this node's pods use and whatever they do with their connections,
// other clients can connect, and so can a pod without a connection.
func TestPodsDoNotTakeThePortFromOthers(t *testing.T) {
	for name, address := range map[string]func(i int) string{
		"link-local addresses":  func(i int) string { return fmt.Sprintf("fe80::%x%%veth1", i+1) },
		"link-local networks":   func(i int) string { return fmt.Sprintf("fe80:0:0:%x::1%%veth1", i+1) },
		"a /64":                 func(i int) string { return fmt.Sprintf("fd00:1::1:%x", i) },
		"secondary addresses":   func(i int) string { return fmt.Sprintf("10.1.0.%d", 10+i%200) },
		"IPv4 link-local":       func(i int) string { return fmt.Sprintf("169.254.%d.1", i%250) },
		"few addresses":         func(i int) string { return fmt.Sprintf("10.1.0.%d", 10+i%16) },
		"addresses of one pod":  func(i int) string { return []string{"10.1.0.2", "fd00:1::2"}[i%2] },
		"interfaces of its own": func(i int) string { return fmt.Sprintf("fe80::1%%veth%d", i) },
	} {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, busy %v", name, busy), func(t *testing.T) {
				f := newFixture()
				for i := range 4 * bounds.Connections {
					if c, _ := f.connect(address(i)); c != nil && busy {
						c.places.mark(c, true)
					}
				}
				for _, other := range []string{"192.0.2.7", "2001:db8::7", "fd00:2::2"} {
					if c, _ := f.connect(other); c == nil {
						t.Errorf("the connection of %s is refused", other)
					}
				}
				f.others.places.mu.Lock()
				n := len(f.others.places.open)
				f.others.places.mu.Unlock()

				if n != 3 {
					t.Errorf("%d connections of other clients, want 3", n)
				}
				// When each of 64 clients has a connection with a request, all places are in use.
				if c, _ := f.connect("10.1.0.3"); c == nil && !(busy && len(f.ofPods.places.clients) == bounds.Connections) {
					t.Error("a pod without a connection is refused")
				}
			})
		}
	}
}

// A new connection displaces one of a client that has more.
func TestWhoIsDisplaced(t *testing.T) {
	type opened struct {
		from string
		busy bool
	}
	times := func(n int, from string, busy bool) (all []opened) {
		for range n {
			all = append(all, opened{from, busy})
		}
		return all
	}
	each := func(clients, connections int, busy bool) (all []opened) {
		for i := range clients {
			all = append(all, times(connections, fmt.Sprintf("192.0.2.%d", 10+i), busy)...)
		}
		return all
	}
	for _, tc := range []struct {
		name string
		open []opened
		from string
		want int // index of the closed connection, -1 for none, -2 for the new one
	}{
		{"there is room", each(7, 8, true), "192.0.2.10", -2},
		{"there is room for another client", each(7, 8, true), "192.0.2.200", -1},
		{"a client with its limit closes its oldest", times(8, "192.0.2.10", false), "192.0.2.10", 0},
		{"a client with its limit closes its oldest without a request", append(times(3, "192.0.2.10", true), times(5, "192.0.2.10", false)...), "192.0.2.10", 3},
		{"full: the oldest of the client with most", append(each(28, 2, false), times(8, "192.0.2.200", false)...), "192.0.2.201", 56},
		{"full: the oldest of the client with most, even with requests", append(each(28, 2, false), times(8, "192.0.2.200", true)...), "192.0.2.201", 56},
		{"full: the oldest of the client with most, for itself", append(each(28, 2, false), times(8, "192.0.2.200", false)...), "192.0.2.200", 56},
		{"full of single connections", each(64, 1, false), "192.0.2.201", 0},
		{"full of single connections with requests", each(64, 1, true), "192.0.2.201", -2},
		{"full of single connections, the client has one with a request", append(each(1, 1, true), each(64, 1, false)[1:]...), "192.0.2.10", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture()
			var flags []*bool
			for _, o := range tc.open {
				c, closed := f.connect(o.from)
				c.places.mark(c, o.busy)
				flags = append(flags, closed)
			}
			c, _ := f.connect(tc.from)
			if refused := c == nil; refused != (tc.want == -2) {
				t.Errorf("refused: %v", refused)
			}
			for i, closed := range flags {
				if *closed != (i == tc.want) {
					t.Errorf("connection %d is closed: %v, want %d to be", i, *closed, tc.want)
				}
			}
			want := 1.0
			if tc.want == -1 {
				want = 0
			}

			if n := testutil.ToFloat64(f.others.places.closed); n != want {
				t.Errorf("%v counted, want %v", n, want)
			}
		})
	}
}

// A connection that ends makes room once.
func TestConnectionsThatEnd(t *testing.T) {
	f := newFixture()
	var all []*connection
	for i := range bounds.Connections {
		c, _ := f.connect(fmt.Sprintf("192.0.2.%d", 10+i))
		c.places.mark(c, true)
		all = append(all, c)
	}
	for range 2 {
		if err := all[0].Close(); err != nil {
			t.Error(err)
		}
	}
	if c, _ := f.connect("192.0.2.200"); c == nil {
		t.Error("refused although there is room")
	} else {
		c.places.mark(c, true)
	}
	if c, _ := f.connect("192.0.2.201"); c != nil {
		t.Error("a connection that was closed twice has made room for two")
	}
	for _, c := range f.others.places.open {
		defer c.Close()
	}

	if len(f.others.places.clients) != bounds.Connections {
		t.Errorf("%d clients, want %d", len(f.others.places.clients), bounds.Connections)
	}
}

// A client on this machine always gets a place, that of the oldest connection if there are too many.
func TestClientsOfThisMachine(t *testing.T) {
	f := newFixture()
	for _, other := range []string{"192.0.2.7", "10.1.0.2"} {
		if c, _ := f.connect(other); c == nil {
			t.Fatal("refused")
		}
	}
	var flags []*bool
	for i := range 2 * bounds.Connections {
		c, closed := f.connect("192.0.2.1")
		if c == nil {
			t.Fatalf("connection %d is refused", i)
		}
		c.places.mark(c, i%2 == 0)
		flags = append(flags, closed)
	}
	for i, closed := range flags {
		if *closed != (i < bounds.Connections) {
			t.Errorf("connection %d is closed: %v", i, *closed)
		}
	}
	if len(f.others.places.open) != 1 || len(f.ofPods.places.open) != 1 {
		t.Error("they take places of other clients")
	}
	if !sameMachine(netip.Addr{}, &net.UnixAddr{Name: "probe"}) {
		t.Error("clients of a unix socket are on another machine")
	}
}

// request returns a request from a client to 192.0.2.1.
func request(client string) *http.Request {
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.RemoteAddr = net.JoinHostPort(client, "4000")
	addr := &net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 9080}
	return r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
}

// answering counts the requests being answered, by client address.
type answering struct {
	mu sync.Mutex
	n  map[string]int
}

func newAnswering() *answering { return &answering{n: map[string]int{}} }

func (a *answering) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n[r.RemoteAddr]++
}

// count returns how many of a client's requests are being answered.
func (a *answering) count(client string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[net.JoinHostPort(client, "4000")]
}

// send sends a request on a connection, nil for one without a place, until ctx ends.
func send(ctx context.Context, h http.Handler, c *connection, client string) {
	r := request(client)
	if c != nil {
		ctx = context.WithValue(ctx, connectionKey{}, c)
	}
	h.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
}

func TestRequestsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, answered := newFixture(), newAnswering()
		st := paced(answered)
		pod, _ := f.connect("10.1.0.2")
		for range 35 {
			go send(t.Context(), st, pod, "10.1.0.2")
		}
		for _, want := range []int{bounds.RequestRate, 2 * bounds.RequestRate, 3 * bounds.RequestRate, 35} {
			synctest.Wait()
			if n := answered.count("10.1.0.2"); n != want {
				t.Errorf("%d requests are answered, want %d", n, want)
			}
			time.Sleep(time.Second)
		}
		for range 40 {
			send(t.Context(), st, nil, "192.0.2.1")
		}

		if n := answered.count("192.0.2.1"); n != 40 {
			t.Errorf("%d requests are answered, want those from the machine at once", n)
		}
	})
}

// The requests of pods do not delay those of other clients, and delay another pod by one
// request.
func TestRequestsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, answered := newFixture(), newAnswering()
		st := paced(answered)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range bounds.ConnectionsPerClient {
			c, _ := f.connect("10.1.0.2")
			for range 50 {
				go send(ctx, st, c, "10.1.0.2")
			}
		}
		synctest.Wait()
		for _, client := range []string{"192.0.2.7", "10.1.0.3"} {
			c, _ := f.connect(client)
			go send(ctx, st, c, client)
		}
		synctest.Wait()
		if answered.count("192.0.2.7") != 1 {
			t.Error("the request of another client waits for those of a pod")
		}
		time.Sleep(2 * time.Second / bounds.RequestRate)
		synctest.Wait()
		if answered.count("10.1.0.3") != 1 {
			t.Error("the request of a pod waits for more than one of another pod")
		}
		cancel()
		synctest.Wait()
	})
}

// Requests whose client has gone use no turn.
func TestWhatIsGoneTakesNoTurn(t *testing.T) {
	wait := func(ctx context.Context, c *connection) error { return c.wait(ctx, c.places.requests) }
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		for i := range 2000 {
			c, _ := f.connect(fmt.Sprintf("192.0.2.%d", 10+i%200))
			ctx := withConnection(t.Context(), c)
			go func() { _ = wait(ctx, c) }()
			synctest.Wait()
			if i%2 == 0 {
				_ = c.Close()
				synctest.Wait()
				if ctx.Err() == nil {
					t.Fatal("the handler of a closed connection goes on")
				}
			}
		}
		for _, c := range append([]*connection{}, f.others.places.open...) {
			_ = c.Close()
		}
		synctest.Wait()

		c, _ := f.connect("192.0.2.250")
		began := time.Now()
		if err := wait(withConnection(t.Context(), c), c); err != nil || time.Since(began) > time.Second {
			t.Errorf("after connections that are gone: %v, after %v", err, time.Since(began))
		}
	})
}
