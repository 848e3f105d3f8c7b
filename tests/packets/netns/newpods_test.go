package netns

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// webSendsToDB isolates the pods app=web of namespace x, which may send to app=db.
const webSendsToDB = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web, namespace: x}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress: [{to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]
`

// cniCache is a folder of libcni's results.
type cniCache string

// announce writes what libcni writes when the sandbox of a pod has its network.
func (c cniCache) announce(t *testing.T, pod *lab.Pod) {
	t.Helper()
	var ips []string
	for _, addr := range pod.Addrs {
		ips = append(ips, fmt.Sprintf(`{"address":"%v/24"}`, addr))
	}
	content := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"lab",`+
		`"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE",%q],["K8S_POD_NAME",%q],["K8S_POD_UID",%q]],`+
		`"result":{"cniVersion":"1.0.0","ips":[%s]}}`, pod.Object.UID, pod.Object.Namespace, pod.Object.Name, pod.Object.UID, strings.Join(ips, ","))
	if err := os.WriteFile(c.file(pod), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// file returns the path where libcni writes the result of a pod.
func (c cniCache) file(pod *lab.Pod) string {
	return filepath.Join(string(c), fmt.Sprintf("lab-%s-eth0", pod.Object.UID))
}

// scheduled gives pods a network and adds their objects to the manifests without addresses,
// like the API before the kubelet has written their status.
func (c *cluster) scheduled(t *testing.T, specs ...string) []*lab.Pod {
	t.Helper()
	var pods []*lab.Pod
	for i, spec := range specs {
		object := labtest.NewPod(spec)
		object.UID = types.UID(fmt.Sprintf("uid-%s-%d", strings.ReplaceAll(object.Name, "/", "-"), i))
		pod := c.Attach(t, object)[0]
		bare := pod.Object.DeepCopy()
		bare.Status.PodIPs, bare.Status.PodIP = nil, ""
		c.Put(t, labtest.PodFile(pod.Name), bare)
		pods = append(pods, pod)
	}
	return pods
}

// sendsAtOnce sends a first packet of each protocol to each address of a pod, and expects
// an answer.
func (c *cluster) sendsAtOnce(t *testing.T, from, to string) {
	t.Helper()
	for _, proto := range []lab.Proto{lab.TCP, lab.UDP} {
		for _, addr := range c.Hosts[to].Addrs {
			answer, err := c.Hosts[from].Probe(t.Context(), proto, netip.AddrPortFrom(addr, 80), answerTime)
			if err != nil || answer.Outcome != lab.Connected {
				t.Errorf("%s to %s (%v, %v): %v %v", from, to, proto, addr, answer.Outcome, err)
			}
		}
	}
}

// TestNewPodsAreKnownBeforeTheirStatus: the CNI cache makes a pod known, so that none of
// its packets waits and its policies are in force.
func TestNewPodsAreKnownBeforeTheirStatus(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	cache := cniCache(t.TempDir())
	agent := c.Start(t, "--pod-address-source", string(cache))[0]
	c.Apply(t, "policies", webSendsToDB)
	c.Expect(t, labtest.No("x/web", "y/web", "tcp/80"), labtest.Yes("x/web", "y/db", "tcp/80"))
	endpoints := func(m lab.Metrics) float64 { return m.Sum("netpol_endpoints") }
	pending := func() float64 {
		return labtest.Metrics(t, agent).Sum("netpol_queue_verdicts_total", "verdict", "pending")
	}
	source := func(name string) float64 {
		return labtest.Metrics(t, agent).Sum("netpol_pod_address_source_info", "source", name)
	}
	if source("status") != 1 {
		t.Error("without pods in the folder, the source is not the status")
	}

	pods := c.scheduled(t, "z/free@1", "x/new@1 app=web")
	before := endpoints(labtest.Metrics(t, agent))
	for _, pod := range pods {
		cache.announce(t, pod)
	}
	if got := labtest.Until(t, agent, before+4, endpoints); got != before+4 {
		t.Fatalf("%v addresses after the pods were announced, want %v; log:\n%s", got, before+4, agent.Log())
	}
	if source("cni-cache") != 1 {
		t.Errorf("the source is not the CNI cache; log:\n%s", agent.Log())
	}
	held := pending()
	c.sendsAtOnce(t, "z/free", "y/web") // no policy selects it
	c.sendsAtOnce(t, "z/free", "x/new")
	c.sendsAtOnce(t, "x/new", "y/db") // a policy allows it
	c.Expect(t, labtest.No("x/new", "y/web", "tcp/80"), labtest.No("x/new", "z/free", "udp/80"))
	if got := pending(); got != held {
		t.Errorf("%v packets waited", got-held)
	}

	// A pod that is announced but not known waits like any unknown pod.
	late := c.Attach(t, labtest.NewPod("x/late@1 app=web"))[0]
	cache.announce(t, late)
	c.Expect(t, labtest.No("x/late", "y/db", "tcp/80"))
	c.Put(t, labtest.PodFile(late.Name), late.Object)
	c.Expect(t, labtest.Yes("x/late", "y/db", "tcp/80"), labtest.No("x/late", "y/web", "tcp/80"))
}

// TestReceiversWaitForNewPods: the first packets of a pod on another node wait at the
// receiver until the pod's status has its addresses, if the addresses affect the decision.
func TestReceiversWaitForNewPods(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "y/web@2", "y/db@2 app=db")
	agents := c.Start(t)
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	pending := func(m lab.Metrics) float64 { return m.Sum("netpol_queue_verdicts_total", "verdict", "pending") }
	before := pending(labtest.Metrics(t, agents[0]))
	c.Expect(t, labtest.No("node-2", "x/web", "tcp/80"))
	if got := pending(labtest.Metrics(t, agents[0])); got != before {
		t.Errorf("%v packets wait while no pod is new", got-before)
	}

	pod := c.scheduled(t, "y/new@2 app=db")[0]
	labtest.Until(t, agents[0], 4, func(m lab.Metrics) float64 { return m.Sum("netpol_objects", "kind", "Pod") })
	answers := make(chan string)
	for _, addr := range c.Hosts["x/web"].Addrs {
		go func() { // on a slow machine TCP retransmits its first packet
			answer, err := pod.Probe(t.Context(), lab.TCP, netip.AddrPortFrom(addr, 80), 20*time.Second)
			answers <- fmt.Sprintf("%v: %v %v", addr, answer.Outcome, err)
		}()
	}
	if got := labtest.Until(t, agents[0], before+2, pending); got < before+2 {
		t.Errorf("%v packets wait, want 2", got-before)
	}
	c.Put(t, labtest.PodFile(pod.Name), pod.Object)
	for range 2 {
		if got := <-answers; !strings.Contains(got, fmt.Sprint(lab.Connected)) {
			t.Error(got)
		}
	}
	c.Expect(t, labtest.Yes("y/new", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "tcp/80"))
}

// TestSweptAddressesTakeNoRoomFromNewPods: many packets from unused addresses of another
// node's range must not keep the first packet of a new pod, whose address is in another
// network, from waiting. If the machine stalls for seconds, the packet is dropped before
// the pod is known; then the attempt is repeated.
func TestSweptAddressesTakeNoRoomFromNewPods(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "y/web@2", "y/db@2 app=db")
	agent := c.Start(t)[0]
	c.Apply(t, "policies", onlyDB)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"))
	c.scheduled(t, "y/other@2 app=db") // unknown sources wait as long as it has no address
	dropped := func(family string) float64 {
		return labtest.Metrics(t, agent).Sum("packet_count", "family", family, "verdict", "drop")
	}
	swept := c.sweep(t, c.Nodes[1], c.Hosts["x/web"].Addr(lab.IPv4))
	defer swept()
	for before := dropped("IPv4"); dropped("IPv4") < before+1000; { // until the limit of waiting packets is reached
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	for attempt := range 5 {
		before := dropped("IPv6")
		pod := c.scheduled(t, fmt.Sprintf("y/new-%d@2 app=db", attempt))[0]
		arrived, err := c.Nodes[0].Capture(func(packet []byte) bool { return labtest.IsFrom(packet, pod.Host) })
		if err != nil {
			t.Fatal(err)
		}
		answer := make(chan lab.Answer)
		go func() {
			got, _ := pod.Probe(t.Context(), lab.TCP, netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv6), 80), 20*time.Second)
			answer <- got
		}()
		if err := labtest.Within(t, func() bool { return arrived.Count() > 0 }); err != nil {
			t.Fatal(err)
		}
		c.Put(t, labtest.PodFile(pod.Name), pod.Object)
		if got := <-answer; got.Outcome != lab.Connected {
			t.Fatalf("a new pod: %v", got.Outcome)
		}
		if dropped("IPv6") == before {
			return
		}
	}
	t.Error("the first packets of new pods were dropped")
}

// sweep sends packets from unused addresses of a node's range until end is called.
func (c *cluster) sweep(t *testing.T, from *lab.Node, to netip.Addr) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		base := from.PodCIDRs[0].Addr().As4()
		for i := 0; ctx.Err() == nil; i++ {
			base[3] = byte(100 + i%100)
			if err := from.SendIP(labtest.IPv4(netip.AddrFrom4(base), to, labtest.ProtoTCP, 0, labtest.TCPSYN(uint16(1024+i)))); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
