package netns

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const (
	// soakPods is the maximum number of pods at a time, and soakRate the new allowed
	// connections per second.
	soakPods = 12
	soakRate = 50
	// settleTime is longer than the kernel remembers any ended connection, and longer than the
	// interval between two garbage collections of an idle program.
	settleTime = 6 * time.Minute
	// settleEvery is the interval of readings while usage settles. Each reading is a
	// connection that the kernel remembers for two minutes.
	settleEvery = 5 * time.Second
	// A leak grows with the changes, and there are hundreds of them. Without a leak, usage may
	// differ by the descriptors of a connection to the API server at the moment of reading, by
	// the growth of buffers in bytes, and by the kernel's entries for the test's own
	// connections.
	goroutineSlack, descriptorSlack = 10, 2
	heapSlack, connectionSlack      = 4 << 20, 100
)

// onlyTeam isolates all pods of z, except from namespaces of the team.
var onlyTeam = labtest.Policy("z", "only-team", `
  podSelector: {}
  ingress: [{from: [{namespaceSelector: {matchLabels: {team: a}}}]}]`)

// soak is a cluster that changes at random, with its current state.
type soak struct {
	*cluster
	t      *testing.T
	random *rand.Rand
	api    *apiserver.Server
	cache  cniCache
	agent  *lab.Agent

	stopAPI  func() // nil while the API server is stopped
	isolated bool   // onlyTeam is applied
	team     bool   // namespace y has the label
	pods     []*lab.Pod
	created  int
	counts   map[string]int // of changes, by name
}

// TestSoak changes pods, policies, namespaces and the API server at random for the time
// SOAK while connections are opened. After each change the right packets pass, and finally
// the agent uses no more than at the beginning. SOAK_SEED repeats an order of changes.
func TestSoak(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv("SOAK"))
	if err != nil {
		t.Skip("takes as long as SOAK says; make soak runs it")
	}
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SOAK_SEED"), fmt.Sprint(rand.Uint64())), 10, 64)
	if err != nil {
		t.Fatalf("SOAK_SEED: %v", err)
	}
	t.Logf("SOAK_SEED=%d", seed)

	s := newSoak(t, seed)
	for range 3 * len(soakChanges) { // allocate everything that is allocated only once
		s.change()
	}
	s.restore()
	before := s.settle(usage{})
	load := startLoad(t, s.cluster, soakRate)
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); {
		s.change()
	}
	load.stop()
	s.restore()
	after := s.settle(before)

	t.Logf("changes: %v", s.counts)
	t.Logf("%d connections opened, %d failed; %d of %d denied packets passed", load.opened.Load(), load.failed.Load(), load.denied.Received(), load.sent.Load())
	t.Logf("before %+v, after %+v", before, after)
	if load.failed.Load() > 0 || load.opened.Load() == 0 {
		t.Errorf("%d of %d connections failed", load.failed.Load(), load.opened.Load())
	}
	if load.denied.Received() > 0 || load.sent.Load() == 0 {
		t.Errorf("%d of %d denied packets passed", load.denied.Received(), load.sent.Load())
	}
	if !after.within(before) {
		t.Errorf("more is in use than before: %+v, before %+v", after, before)
	}
	if after.unanswered != 0 {
		t.Errorf("%v packets have no verdict", after.unanswered)
	}
	if strings.Contains(s.agent.Log(), "DATA RACE") {
		t.Error("the race detector has found a race")
	}
}

func newSoak(t *testing.T, seed uint64) *soak {
	t.Helper()
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db", "z/web@1 app=web")
	s := &soak{cluster: c, t: t, random: rand.New(rand.NewPCG(seed, 0)), cache: cniCache(t.TempDir()), counts: make(map[string]int)}
	s.api = c.api(t)
	put(t, s.api, lab.NewNamespace("z", map[string]string{"ns": "z"}))
	s.stopAPI = serveAPI(t, c.Nodes[0], s.api)
	s.agent = c.startWithAPI(t, "--pod-address-source="+string(s.cache), "--snapshot-cache="+filepath.Join(t.TempDir(), "snapshot"))
	labtest.WaitReady(t, s.agent)
	return s
}

// soakChanges are equally likely.
var soakChanges = []struct {
	name string
	make func(*soak)
}{
	{"pod created", (*soak).createPod},
	{"pod deleted", (*soak).deletePod},
	{"policy", func(s *soak) { s.isolate(!s.isolated) }},
	{"namespace", func(s *soak) { s.label(!s.team) }},
	{"API server", (*soak).toggleAPI},
}

// change makes one change and checks which packets pass afterwards.
func (s *soak) change() {
	s.t.Helper()
	c := soakChanges[s.random.IntN(len(soakChanges))]
	c.make(s)
	s.counts[c.name]++
	if s.stopAPI != nil {
		s.check()
	}
}

// check expects what the objects in the API mean.
func (s *soak) check() {
	s.t.Helper()
	expected := []labtest.Expectation{
		labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "udp/80"),
		labtest.NewExpectation("y/web", "z/web", "tcp/80", !s.isolated || s.team),
	}
	for _, pod := range s.pods {
		expected = append(expected,
			labtest.NewExpectation(pod.Name, "x/web", "tcp/80", pod.Object.Labels["app"] == "db"),
			labtest.NewExpectation("y/web", pod.Name, "udp/80", !s.isolated || s.team))
	}
	s.Expect(s.t, expected...)
}

// createPod publishes a pod like the kubelet: first without addresses, then in the CNI
// cache, and finally with addresses. It may reuse the address of a deleted pod.
func (s *soak) createPod() {
	s.t.Helper()
	if len(s.pods) == soakPods {
		s.deletePod()
	}
	s.created++
	object := labtest.NewPod(fmt.Sprintf("z/new-%d@1 app=%s", s.created, []string{"web", "db"}[s.random.IntN(2)]))
	object.UID = types.UID(object.Name)
	pod := s.Attach(s.t, object)[0]
	bare := pod.Object.DeepCopy()
	bare.Status.PodIPs, bare.Status.PodIP = nil, ""
	put(s.t, s.api, bare)
	s.cache.announce(s.t, pod)
	put(s.t, s.api, pod.Object)
	s.pods = append(s.pods, pod)
}

func (s *soak) deletePod() {
	s.t.Helper()
	if len(s.pods) == 0 {
		return
	}
	i := s.random.IntN(len(s.pods))
	pod := s.pods[i]
	s.pods = append(s.pods[:i], s.pods[i+1:]...)
	delete(s.Hosts, pod.Name)
	delete(s.Pods, pod.Name)
	_, err := s.api.Delete(pod.Object)
	err = cmp.Or(err, s.Remove(s.t.Context(), pod.Host), os.Remove(s.cache.file(pod)))
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *soak) isolate(isolated bool) {
	s.t.Helper()
	s.isolated = isolated
	if isolated {
		put(s.t, s.api, policyOf(s.t, onlyTeam))
	} else if _, err := s.api.Delete(policyOf(s.t, onlyTeam)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *soak) label(team bool) {
	s.t.Helper()
	s.team = team
	labels := map[string]string{"ns": "y"}
	if team {
		labels["team"] = "a"
	}
	put(s.t, s.api, lab.NewNamespace("y", labels))
}

// toggleAPI stops the API server, or starts it with the changes since it was stopped.
func (s *soak) toggleAPI() {
	s.t.Helper()
	if s.stopAPI == nil {
		s.stopAPI = serveAPI(s.t, s.Nodes[0], s.api)
		return
	}
	s.stopAPI()
	s.stopAPI = nil
}

// restore restores the cluster's initial state.
func (s *soak) restore() {
	s.t.Helper()
	if s.stopAPI == nil {
		s.toggleAPI()
	}
	for len(s.pods) > 0 {
		s.deletePod()
	}
	if s.isolated {
		s.isolate(false)
	}
	s.label(false)
	s.check()
}

// usage is the resources of the agent, and of the kernel on its behalf.
type usage struct {
	goroutines, descriptors, endpoints, heap float64
	connections                              int     // in the kernel's table
	unanswered                               float64 // packets that were steered but neither decided nor dropped
}

// within reports whether u exceeds before by no more than the slack.
func (u usage) within(before usage) bool {
	return u.goroutines <= before.goroutines+goroutineSlack && u.descriptors <= before.descriptors+descriptorSlack && u.endpoints <= before.endpoints &&
		u.connections <= before.connections+connectionSlack && u.heap <= before.heap+heapSlack
}

// settle returns the usage once it is within before and no packet waits, or the last usage
// after settleTime. For a zero before it waits only for the packets.
func (s *soak) settle(before usage) usage {
	s.t.Helper()
	for end := time.Now().Add(settleTime); ; time.Sleep(settleEvery) {
		now := s.usage()
		if now.unanswered == 0 && (before == usage{} || now.within(before)) || time.Now().After(end) {
			return now
		}
	}
}

func (s *soak) usage() usage {
	s.t.Helper()
	m := labtest.Metrics(s.t, s.agent)
	count, err := s.Nodes[0].Run(s.t.Context(), "", "cat", "/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		s.t.Fatal(err)
	}
	return usage{
		goroutines:  m.Sum("go_goroutines"),
		descriptors: m.Sum("process_open_fds"),
		endpoints:   m.Sum("netpol_endpoints"),
		heap:        m.Sum("go_memstats_heap_alloc_bytes"),
		connections: labtest.Atoi(s.t, strings.TrimSpace(count)),
		unanswered:  labtest.Unanswered(m),
	}
}
