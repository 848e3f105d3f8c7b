package netns

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// withClusterPolicy adds ClusterNetworkPolicies that never change to an API.
func withClusterPolicy(t *testing.T, api http.Handler, manifests ...string) http.Handler {
	t.Helper()
	list := v1beta1.ClusterNetworkPolicyList{
		TypeMeta: metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "ClusterNetworkPolicyList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		Items:    make([]v1beta1.ClusterNetworkPolicy, len(manifests)),
	}
	for i, m := range manifests {
		if err := yaml.Unmarshal([]byte(m), &list.Items[i]); err != nil {
			t.Fatal(err)
		}
	}
	path := "/apis/" + v1beta1.GroupVersion.String()
	mux := http.NewServeMux()
	send := func(w http.ResponseWriter, code int, o any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(o)
	}
	mux.Handle("/", api)
	mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
		send(w, http.StatusOK, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: v1beta1.GroupVersion.String(),
			APIResources: []metav1.APIResource{{Name: "clusternetworkpolicies", Kind: "ClusterNetworkPolicy", Verbs: metav1.Verbs{"get", "list", "watch"}}}})
	})
	mux.HandleFunc(path+"/clusternetworkpolicies", func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		switch {
		case query.Get("sendInitialEvents") != "": // as of servers without streamed lists
			send(w, http.StatusUnprocessableEntity, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		case query.Get("watch") != "":
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			send(w, http.StatusOK, list)
		}
	})
	return mux
}

// client opens new connections to the addresses that it has looked up once, one after another.
type client struct {
	opened, failed atomic.Int64
}

// startClient opens connections from a host to port 80 of addrs until the test or stop ends it.
func startClient(t *testing.T, from *lab.Host, proto lab.Proto, addrs []netip.Addr) (c *client, stop func()) {
	t.Helper()
	c = &client{}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			// Not ctx: a connection that has begun is not given up.
			answer, err := from.Probe(context.Background(), proto, netip.AddrPortFrom(addrs[i%len(addrs)], 80), answerTime)
			if err != nil || answer.Outcome != lab.Connected {
				c.failed.Add(1)
			}
			c.opened.Add(1)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	return c, stop
}

// opens waits for more connections.
func (c *client) opens(t *testing.T, more int64) {
	t.Helper()
	enough := c.opened.Load() + more
	if err := labtest.Within(t, func() bool { return c.opened.Load() >= enough }); err != nil {
		t.Fatalf("%d connections, of which %d failed: %v", c.opened.Load(), c.failed.Load(), err)
	}
}

// TestNamesSurviveRestarts: a client looks a name up once and opens connections to its addresses all
// the time, while the agent is restarted, killed, and replaced. None fails, and the agents need no
// further answer.
func TestNamesSurviveRestarts(t *testing.T) {
	const connections = 50 // after each restart
	c := newCluster(t, 2, "x/web@1 app=web", "x/dns@2 app=dns")
	c.addHost(t, "one", "203.0.113.1", "2001:db8::1")
	r := newResolver(t, c.Hosts["x/dns"])
	r.set("x.example.test.", c.Hosts["one"].Addrs...)
	r.extend(3600) // longer than the test
	serveAPI(t, c.Nodes[0], withClusterPolicy(t, c.api(t), allowNames(`"*.example.test"`)))
	args := []string{withClusterPolicies, kubeconfig(t), "--snapshot-cache=" + filepath.Join(t.TempDir(), "snapshot"), "--dns-resolvers=" + r.host.Addr(lab.IPv4).String()}
	turn := uint16(0)
	start := func() *lab.Agent {
		turn++
		agent := c.startAgent(t, lab.AgentConfig{Args: args, Metrics: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 9080+turn%3)})
		labtest.WaitReady(t, agent)
		return agent
	}

	agent := start()
	c.Expect(t, labtest.No("x/web", "one", "tcp/80"))
	addrs := c.lookUp(t, "x/web", "x.example.test.", lab.UDP, r.host.Addr(lab.IPv4))
	c.Expect(t, labtest.Yes("x/web", "one", "tcp/80"))
	tcp, stopTCP := startClient(t, c.Hosts["x/web"], lab.TCP, addrs)
	tcp.opens(t, connections)

	for range 2 {
		if err := agent.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		agent = start()
		tcp.opens(t, connections)
		agent.Kill()
		agent = start()
		tcp.opens(t, connections)
	}

	// In a rollout, not even a datagram is lost, which is sent once.
	udp, stopUDP := startClient(t, c.Hosts["x/web"], lab.UDP, addrs)
	for range 3 {
		old := agent
		agent = start()
		if err := old.Stop(t.Context()); err != nil {
			t.Errorf("the old agent ends with %v", err)
		}
		tcp.opens(t, connections)
		udp.opens(t, connections)
	}
	stopTCP()
	stopUDP()
	if tcp.failed.Load() > 0 || udp.failed.Load() > 0 {
		t.Errorf("%d of %d connections and %d of %d datagrams failed", tcp.failed.Load(), tcp.opened.Load(), udp.failed.Load(), udp.opened.Load())
	}
	m := labtest.Metrics(t, agent)
	if queries, denied, known := m.Sum("netpol_dns_messages_total", "message", "query"), labtest.Denied(m), m.Sum("netpol_dns_addresses"); queries != 0 || denied != 0 || known != float64(len(addrs)) {
		t.Errorf("the last agent has seen %v queries, denied %v packets and knows %v addresses of %v", queries, denied, known, addrs)
	}
	c.Expect(t, labtest.Yes("x/web", "one", "tcp/80"))
}
