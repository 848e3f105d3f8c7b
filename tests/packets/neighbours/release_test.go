package neighbours

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/scheme"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// upstreamChanges is how often policies change while both agents run; with HARD for ten minutes.
const upstreamChanges = 10

// TestUpstreamRelease runs the released upstream agent, built by make bench-other, before, beside and after this
// agent. It needs a kernel with the queue statement, such as that of make test-vm.
func TestUpstreamRelease(t *testing.T) {
	binary := os.Getenv("UPSTREAM_BINARY")
	if binary == "" {
		t.Skip("UPSTREAM_BINARY is not set: make test-vm RUN=UpstreamRelease")
	}
	n := newNode(t)
	r := newRelease(t, n, binary)
	both := slices.Concat(denied, allowed)
	r.start(t)
	n.Expect(t, allowed...) // it fails open by default, and so passes some of what is denied on a slow machine
	talk := n.talk(t, "y/db", "x/web")
	goesOn := func(when string) {
		t.Helper()
		if err := labtest.Within(t, talk.answered); err != nil {
			t.Errorf("%s the connection ends although both agents allow it", when)
		}
	}

	agent := n.agent(t)
	labtest.WaitReady(t, agent)
	n.problem(t, agent, "policy_engine")
	labtest.WaitLog(t, agent, upstreamTable)
	n.Expect(t, both...)
	passed := n.countPassed(t)
	goesOn("when this agent comes")
	syncs, changes := r.syncs(), 0
	for end := time.Now().Add(hardTime()); changes < upstreamChanges || time.Now().Before(end); changes++ {
		r.replace(t, closed)
		n.Expect(t, labtest.No("z/out", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "udp/80"))
		r.replace(t, isolated)
		n.Expect(t, labtest.Yes("z/out", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "udp/80"))
	}
	if more := r.syncs() - syncs; more > 2*changes+2 {
		t.Errorf("the upstream agent writes its table %d times for %d changes", more, 2*changes)
	}
	t.Logf("%d changes while both agents ran", 2*changes)
	for _, metric := range []string{"netpol_steer_external_changes_total", "netpol_steer_repairs_total"} {
		if got := labtest.Metrics(t, agent).Sum(metric); got != 0 {
			t.Errorf("%s is %v", metric, got)
		}
	}

	talk = n.talk(t, "y/db", "x/web")
	r.stop()
	n.Expect(t, both...)
	n.run(t, labtest.AgentBinary+" cleanup")
	if _, err := n.Nodes[0].Run(t.Context(), "", "nft", "list", "table", "inet", upstreamTable); err == nil {
		t.Error("cleanup leaves the table of the upstream agent that has ended")
	}
	goesOn("when the upstream agent goes")
	r.start(t)
	n.Expect(t, both...)
	if got := passed(); got != 0 {
		t.Errorf("%d denied packets were answered", got)
	}
	n.remove(t, agent) // from here on the other one alone denies
	n.Expect(t, allowed...)
	goesOn("when this agent goes")
}

// hardTime is how long the agents run beside each other, however many changes that takes.
func hardTime() time.Duration {
	if os.Getenv("HARD") == "" {
		return 0
	}
	return 10 * time.Minute
}

// release is the upstream agent of a release on the node. It reads an API with the objects of the manifests.
type release struct {
	node
	binary, kubeconfig string
	api                *apiserver.Server

	process *lab.Process
	written string // by earlier processes
}

func newRelease(t *testing.T, n node, binary string) *release {
	t.Helper()
	const address = "127.0.0.1:6443"
	r := &release{node: n, binary: binary, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), api: apiserver.New()}
	config := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'http://%s'}}]\n"+
		"contexts: [{name: a, context: {cluster: a, user: a}}]\nusers: [{name: a, user: {}}]\ncurrent-context: a\n", address)
	if err := os.WriteFile(r.kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(n.Manifests.Dir(), "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r.put(t, string(text))
	}
	listener, err := n.Nodes[0].Listen(netip.MustParseAddrPort(address))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: r.api}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return r
}

// put writes objects to the API.
func (r *release) put(t *testing.T, manifests string) {
	t.Helper()
	for document := range strings.SplitSeq(manifests, "---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
		if err == nil {
			_, err = r.api.Put(object.(apiserver.Object))
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
	}
}

// replace replaces the policy of x for both agents.
func (r *release) replace(t *testing.T, policy string) {
	t.Helper()
	r.put(t, policy)
	r.Replace(t, "x", policy)
}

// start starts it and waits until it writes its table and receives packets.
func (r *release) start(t *testing.T) {
	t.Helper()
	r.run(t)
	if err := labtest.Within(t, func() bool {
		select {
		case <-r.process.Ended():
			r.run(t) // as the kubelet does: on a slow machine it may end because it cannot open its queue
		default:
		}
		queues, _ := r.Nodes[0].ReadProc("netfilter/nfnetlink_queue")
		return slices.Contains(strings.Fields(queues), fmt.Sprint(upstreamQueue))
	}); err != nil {
		t.Fatal("the upstream agent has no queue")
	}
}

// run starts its process.
func (r *release) run(t *testing.T) {
	t.Helper()
	if r.process != nil {
		r.written += r.process.Log()
	}
	process, err := r.Nodes[0].Start(r.binary, "--kubeconfig="+r.kubeconfig, "--hostname-override="+r.Nodes[0].Name, "--disable-nri",
		fmt.Sprint("--nfqueue-id=", upstreamQueue), "--metrics-bind-address=127.0.0.1:9081")
	if err != nil {
		t.Fatal(err)
	}
	r.process = process
	t.Cleanup(func() {
		process.Stop(syscall.SIGKILL)
		if t.Failed() {
			t.Logf("log of the upstream agent:\n%s", process.Log())
		}
	})
}

// stop ends it. It leaves its table.
func (r *release) stop() { r.process.Stop(syscall.SIGTERM) }

// syncs returns how often it has written its table, which it logs before and after.
func (r *release) syncs() int {
	return strings.Count(r.written+r.process.Log(), "Syncing nftables rules") / 2
}

// countPassed sends denied packets until the test ends. The result returns how many were answered.
func (n node) countPassed(t *testing.T) func() int64 {
	var answered atomic.Int64
	var running sync.WaitGroup
	for _, pair := range [][2]string{{"y/web", "x/web"}, {"z/out", "y/web"}} { // of denied
		running.Go(func() {
			from, to, protos := pair[0], pair[1], []lab.Proto{lab.TCP, lab.UDP}
			for i := 0; t.Context().Err() == nil; i++ {
				addrs := n.Hosts[to].Addrs
				answer, err := n.Hosts[from].Probe(t.Context(), protos[i/2%2], netip.AddrPortFrom(addrs[i%len(addrs)], 80), time.Second)
				if err == nil && answer.Outcome == lab.Connected {
					answered.Add(1)
				}
			}
		})
	}
	t.Cleanup(running.Wait)
	return answered.Load
}
