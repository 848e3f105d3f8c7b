package newpods

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// fleet has the agents of many nodes, and the network and the API between them in memory. It runs in a
// bubble, so minutes take no time. An agent serves once another one connects to it.
type fleet struct {
	t       *testing.T
	ctx     context.Context
	running sync.WaitGroup
	// All agents have one key: what is counted does not depend on keys.
	key, message string

	mu      sync.Mutex
	members map[int]*fleetMember
	open    map[[2]string]int // connections by the nodes at both ends
	counts
	pairMost int   // connections of one node to another at a time
	sent     int64 // bytes that agents have sent to those that ask
}

// counts is what agents have cost.
type counts struct {
	connections int // that are open
	dialed      int // all of them
	lines       int // that were heard
	lists       int // of the agent of the first node
}

func (f *fleet) want(when string, want counts) {
	f.t.Helper()
	if got, _ := f.count(); got != want {
		f.t.Errorf("%s: %+v, want %+v", when, got, want)
	}
}

// count returns what agents have cost until now, and the bytes that they have sent.
func (f *fleet) count() (c counts, sent int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.connections = len(f.open)
	return f.counts, f.sent
}

// fleetMember is the agent of a node.
type fleetMember struct {
	certificate *tls.Certificate
	agents      *Agents
	board       *Board
	asker       *Asker
	listener    *pipeListener
}

// inFleet runs f in a bubble with a fleet, and ends all agents after it.
func inFleet(t *testing.T, f func(*fleet)) {
	synctest.Test(t, func(t *testing.T) {
		key := filepath.Join(t.TempDir(), "key")
		message, err := tlskey.Make(key)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		all := &fleet{t: t, ctx: ctx, key: key, message: message, members: map[int]*fleetMember{}, open: map[[2]string]int{}}
		f(all)
		cancel()
		all.running.Wait()
		if c, _ := all.count(); c.connections != 0 {
			t.Errorf("%d connections are open at the end", c.connections)
		}
	})
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// nodeAddr returns the address of a node, podAddr one of its pods, and nodeOf the node of that one.
func nodeAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}) }
func podAddr(i, pod int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(pod)})
}
func nodeOf(a netip.Addr) int { return int(a.As4()[1])<<8 | int(a.As4()[2]) }

// member returns the agent of a node.
func (f *fleet) member(i int) *fleetMember {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.members[i]; m != nil {
		return m
	}
	certificate, err := tlskey.OfAgent(nodeName(i), f.key)
	if err != nil {
		f.t.Fatal(err)
	}
	m := &fleetMember{certificate: certificate, board: NewBoard(), agents: NewAgents(fleetPods{fleet: f, asking: nodeName(i)}, nodeName(i), certificate.Leaf)}
	m.asker = NewAsker(Config{
		Peers: Peers{Agents: m.agents, Certificate: certificate, Port: "9082"}, Registerer: prometheus.NewRegistry(),
		NodesAt: func(a netip.Addr) []string { return []string{nodeName(nodeOf(a))} },
		Set: func(_ string, s []clusterstate.Sandbox) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if s != nil {
				f.lines++
			}
		},
	})
	m.asker.dial = func(_ context.Context, _, address string) (net.Conn, error) { return f.dial(i, address) }
	f.members[i] = m
	f.running.Go(func() { _ = m.asker.Run(f.ctx) })
	return m
}

// fleetPods is the API as the agent of one node sees it.
type fleetPods struct {
	corev1client.PodInterface
	*fleet
	asking string
}

// List returns the agent of a node.
func (p fleetPods) List(_ context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	selector, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return nil, err
	}
	node, _ := selector.RequiresExactMatch("spec.nodeName")
	var i int
	if _, err := fmt.Sscanf(node, "node-%d", &i); err != nil {
		return nil, err
	}
	p.countList(p.asking)
	return &corev1.PodList{Items: []corev1.Pod{{
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: account},
		Status: corev1.PodStatus{PodIP: nodeAddr(i).String(), InitContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: p.message}},
		}}},
	}}}, nil
}

func (f *fleet) countList(asking string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if asking == nodeName(0) {
		f.lists++
	}
}

// dial connects the agent of a node to another one, as it serves in the agent's process.
func (f *fleet) dial(from int, address string) (net.Conn, error) {
	to := netip.MustParseAddrPort(address)
	a := to.Addr().As4()
	server := f.serve(int(a[2])<<8 | int(a[3]))
	pair := [2]string{nodeName(from), address}
	f.mu.Lock()
	f.dialed++
	f.open[pair]++
	f.pairMost = max(f.pairMost, f.open[pair])
	f.mu.Unlock()
	near, far := net.Pipe()
	client := &fleetConn{Conn: near, local: nodeAddr(from), remote: to.Addr(), closed: sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.open[pair]--
		if f.open[pair] == 0 {
			delete(f.open, pair)
		}
	})}
	accepted := &fleetConn{Conn: far, local: to.Addr(), remote: nodeAddr(from), closed: func() {}, sent: func(n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.sent += int64(n)
	}}
	select {
	case server.listener.accept <- accepted:
		return client, nil
	case <-server.listener.done:
		_ = client.Close()
		return nil, net.ErrClosed
	}
}

// serve has the agent of a node serve its board.
func (f *fleet) serve(i int) *fleetMember {
	m := f.member(i)
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.listener != nil {
		return m
	}
	m.listener = &pipeListener{accept: make(chan net.Conn), done: make(chan struct{}), addr: nodeAddr(i)}
	access := &httpserver.Access{Client: m.agents.Check, Streams: tlskey.IsAgents, Certificate: httpserver.Fixed(m.certificate)}
	f.running.Go(func() { _ = httpserver.New(m.board, nil, prometheus.NewRegistry()).Run(f.ctx, m.listener, access) })
	return m
}

// heap returns the bytes of memory that are in use.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

// pass lets time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// pipeListener accepts connections in memory.
type pipeListener struct {
	accept chan net.Conn
	done   chan struct{}
	end    sync.Once
	addr   netip.Addr
	last   net.Conn // that was accepted
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		l.last = c
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.end.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(l.addr, 9082))
}

// fleetConn is one end of a connection.
type fleetConn struct {
	net.Conn
	local, remote netip.Addr
	closed        func()
	sent          func(int) // nil counts nothing
}

func (c *fleetConn) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.local, 9082))
}
func (c *fleetConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.remote, 9082))
}

func (c *fleetConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.sent != nil {
		c.sent(n)
	}
	return n, err
}

func (c *fleetConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// TestFleetOneAsks: an agent that needs the new pods of all other nodes asks a bounded number of them at
// a time, each over one connection that ends minutes after it was needed.
func TestFleetOneAsks(t *testing.T) {
	inFleet(t, func(f *fleet) {
		one := f.member(0)
		pass(time.Hour)
		f.want("an hour without packets that wait", counts{})

		idle := heap()
		for i := 1; i < fleetSize; i++ {
			one.asker.Want(podAddr(i, 1))
			one.asker.Want(podAddr(i, 2))
			synctest.Wait()
		}
		pass(time.Second)
		f.want("packets from all nodes", counts{connections: bounds.AskedNodes, dialed: bounds.AskedNodes, lines: bounds.AskedNodes, lists: 1 + bounds.AskedNodes})
		if n := testutil.ToFloat64(one.asker.skipped); n != 2*(fleetSize-1-bounds.AskedNodes) {
			t.Errorf("%v attempts are skipped", n)
		}
		_, begun := f.count()
		pass(time.Minute)
		f.want("a minute later", counts{connections: bounds.AskedNodes, dialed: bounds.AskedNodes, lines: 13 * bounds.AskedNodes, lists: 1 + bounds.AskedNodes})
		_, sent := f.count()
		begin, minute := begun/bounds.AskedNodes, (sent-begun)/bounds.AskedNodes
		t.Logf("an agent sends %d bytes until its first line, and then %d in a minute", begin, minute)
		if begin > 3000 || minute > 600 {
			t.Error("these are more than documented")
		}
		each := (heap() - idle) / bounds.AskedNodes
		t.Logf("a connection has %d KB of memory at both ends", each>>10)
		if each > 256<<10 {
			t.Error("this is more than documented")
		}
		pass(askFor)
		// It ends with the first line after askFor.
		end := counts{dialed: bounds.AskedNodes, lines: 62 * bounds.AskedNodes, lists: 1 + bounds.AskedNodes}
		f.want("when they were not needed for minutes", end)
		pass(time.Hour)
		f.want("an hour later", end)

		if f.pairMost != 1 || len(one.agents.known) > bounds.KnownNodes || len(one.asker.nodes) > bounds.AskedNodes {
			t.Errorf("at most %d connections to one node; %d nodes are remembered, %d are asked", f.pairMost, len(one.agents.known), len(one.asker.nodes))
		}
	})
}

// TestFleetAllAsk: a node from which all others want to know a new pod, within a second, answers a
// bounded number of them.
func TestFleetAllAsk(t *testing.T) {
	inFleet(t, func(f *fleet) {
		f.serve(0).board.Set([]clusterstate.Sandbox{sandboxAt("a", "10.0.0.1")})
		for i := 1; i < fleetSize; i++ {
			f.member(i).asker.Want(podAddr(0, 1))
			pass(time.Second / fleetSize)
			if c, _ := f.count(); c.connections > bounds.HandshakeWaiting+bounds.HandshakeRunning+bounds.Connections {
				t.Fatalf("%d connections are open", c.connections)
			}
		}
		c, _ := f.count()
		if limit := 1 + bounds.ListBurst + bounds.ListRate; c.lines == 0 || c.lines > limit || c.lists > limit {
			t.Errorf("%d are answered in a second, with %d lists, want at most %d", c.lines, c.lists, limit)
		}
		t.Logf("%d are answered in the first second", c.lines)
		pass(2 * time.Second)
		c, _ = f.count()
		t.Logf("%d are answered three seconds after the first has asked", c.connections)
		if f.pairMost != 1 || c.dialed != fleetSize-1 {
			t.Errorf("%d connections of %d nodes, at most %d of one", c.dialed, fleetSize-1, f.pairMost)
		}
		pass(askFor + heartbeat)
		if c, _ := f.count(); c.connections != 0 {
			t.Errorf("%d connections minutes later", c.connections)
		}
	})
}

// TestFleetReportsOutlastConversations: what an agent has reported counts for a while after it is no longer
// asked, or is gone, so that a pod keeps its connections until its status is written.
func TestFleetReportsOutlastConversations(t *testing.T) {
	inFleet(t, func(f *fleet) {
		var mu sync.Mutex
		reports := map[string]int{} // the number of pods, by node
		one, two := f.member(0), f.serve(1)
		one.asker.cfg.Set = func(node string, s []clusterstate.Sandbox) {
			mu.Lock()
			defer mu.Unlock()
			reports[node] = len(s)
		}
		want := func(when string, pods int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := reports["node-1"]; got != pods {
				t.Errorf("%s: %d pods are reported, want %d", when, got, pods)
			}
		}
		start := func(names ...string) {
			var all []clusterstate.Sandbox
			for _, name := range names {
				all = append(all, sandboxAt(name, "10.0.1.1"))
			}
			two.board.Set(all)
		}
		one.asker.Want(podAddr(1, 1))
		pass(askFor - time.Second)
		start("a")
		want("a pod that starts before the end", 1)
		pass(10 * time.Second)
		if c, _ := f.count(); c.connections != 0 {
			t.Error("the conversation does not end")
		}
		want("after the end", 1)
		pass(keepFor - 10*time.Second)
		want("before its time is over", 1)
		pass(10 * time.Second)
		want("after its time", 0)

		start("b", "a")
		one.asker.Want(podAddr(1, 1))
		want("a node that is asked again", 2)
		_ = two.listener.last.Close()
		want("an agent that is gone", 2)
		pass(keepFor - time.Second)
		one.asker.Want(podAddr(1, 1))
		start("a")
		pass(2 * time.Second)
		want("one that is asked in time", 1)
		_ = two.listener.Close()
		_ = two.listener.last.Close()
		pass(keepFor - time.Second)
		one.asker.Want(podAddr(1, 1))
		want("one that does not answer again", 1)
		pass(2 * time.Second)
		want("after its time", 0)
		for i := range 2 * maxReports {
			one.asker.report(nodeName(i+2), nil)
			one.asker.mu.Lock()
			one.asker.forgetLater(nodeName(i + 2))
			one.asker.mu.Unlock()
		}
		if n := len(one.asker.reports); n > maxReports {
			t.Errorf("the reports of %d nodes count", n)
		}
	})
}

// TestFleetAsksOn: an agent that is needed all the time is asked again before its stream ends.
func TestFleetAsksOn(t *testing.T) {
	inFleet(t, func(f *fleet) {
		one := f.member(0)
		for range 60 {
			one.asker.Want(podAddr(1, 1))
			pass(time.Minute)
		}
		if c, _ := f.count(); c.dialed != int(time.Hour/bounds.StreamTime) {
			t.Errorf("%d connections in an hour", c.dialed)
		}
		if n := testutil.ToFloat64(one.asker.failed); n != 0 {
			t.Errorf("%v attempts have failed", n)
		}
	})
}

// TestFleetManyPodsOfANode: a node is asked once for many new pods.
func TestFleetManyPodsOfANode(t *testing.T) {
	inFleet(t, func(f *fleet) {
		for pod := range 250 {
			f.member(0).asker.Want(podAddr(1, pod))
		}
		pass(time.Second)
		f.want("many pods", counts{connections: 1, dialed: 1, lines: 1, lists: 2})
	})
}
