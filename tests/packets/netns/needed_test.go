package netns

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
	"sigs.k8s.io/kube-network-policies/tests/speed/scale/apiserver"
)

// neededAPI serves the API to an agent that watches only needed pods: those of its own
// node, and those of some namespaces.
type neededAPI struct {
	*apiserver.Server // all kinds except pods and administrators' policies
	admin             v1alpha1.AdminNetworkPolicyList
	own               *apiserver.Server
	pods              map[string]*apiserver.Server // pods of other nodes, by namespace
	late              chan struct{}                // lists of other nodes' pods wait until it is closed

	mu    sync.Mutex
	asked []string // for pods of other nodes
}

// neededAPI returns an API with the cluster's objects and administrators' policies.
func (c *cluster) neededAPI(t *testing.T, policies ...string) *neededAPI {
	t.Helper()
	a := &neededAPI{Server: apiserver.New(), own: apiserver.New(), pods: map[string]*apiserver.Server{}, late: make(chan struct{})}
	for _, node := range c.Nodes {
		put(t, a.Server, node.Object())
	}
	for _, name := range []string{"x", "y", "z"} {
		put(t, a.Server, lab.NewNamespace(name, map[string]string{"ns": name}))
		a.pods[name] = apiserver.New()
	}
	for _, pod := range c.Pods {
		if pod.Object.Spec.NodeName == c.Nodes[0].Name {
			put(t, a.own, pod.Object)
		} else {
			put(t, a.pods[pod.Object.Namespace], pod.Object)
		}
	}
	a.admin = v1alpha1.AdminNetworkPolicyList{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AdminNetworkPolicyList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		Items:    make([]v1alpha1.AdminNetworkPolicy, len(policies)),
	}
	for i, policy := range policies {
		if err := yaml.Unmarshal([]byte(policy), &a.admin.Items[i]); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func (a *neededAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	namespace := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/pods")
	switch {
	case strings.HasSuffix(r.URL.Path, "/adminnetworkpolicies"):
		a.serveAdmin(w, r)
	case r.URL.Path == "/api/v1/pods" && strings.HasPrefix(query.Get("fieldSelector"), "spec.nodeName="):
		a.own.ServeHTTP(w, r)
	case a.pods[namespace] != nil:
		a.note(namespace + " " + query.Get("labelSelector"))
		select {
		case <-a.late:
		case <-r.Context().Done():
			return
		}
		r.URL.Path = "/api/v1/pods"
		a.pods[namespace].ServeHTTP(w, r)
	default: // includes an unexpected request for all pods, which finds none
		a.Server.ServeHTTP(w, r)
	}
}

// serveAdmin serves the administrator's policies, which never change.
func (a *neededAPI) serveAdmin(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		_ = json.NewEncoder(w).Encode(&a.admin)
		return
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func (a *neededAPI) note(asked string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, asked)
}

// expectAsked waits until the agent asks for pods of other nodes, and checks which.
func (a *neededAPI) expectAsked(t *testing.T, want string) {
	t.Helper()
	asked := func() []string {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.asked
	}
	_ = labtest.Within(t, func() bool { return len(asked()) > 0 })
	if got := asked(); fmt.Sprint(got) != fmt.Sprint([]string{want}) {
		t.Errorf("the agent asks for pods of %q, want %q", got, want)
	}
}

// startNeeded starts an agent on the first node with --pod-watches=needed.
func (c *cluster) startNeeded(t *testing.T, api http.Handler) *lab.Agent {
	t.Helper()
	serveAPI(t, c.Nodes[0], api)
	agent := c.startWithAPI(t, "--pod-watches=needed", labtest.WithAdmin)
	labtest.WaitReady(t, agent)
	return agent
}

// denySuspects denies the pods app=web ingress from namespaces with a label.
var denySuspects = labtest.Admin("suspects", `ingress: [{name: suspects, action: Deny, from: [{namespaces: {matchLabels: {suspect: "true"}}}]}]`)

// TestNeededPodsAreDeniedBeforeTheyAreListed: a namespace gets a label that an
// administrator's rule denies. No packet that may be from its pods passes before the API
// server has listed them.
func TestNeededPodsAreDeniedBeforeTheyAreListed(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "x/db@1", "y/web@2", "z/web@2")
	api := c.neededAPI(t, denySuspects)
	c.startNeeded(t, api)
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"), labtest.Yes("z/web", "x/web", "tcp/80"))

	put(t, api.Server, lab.NewNamespace("y", map[string]string{"ns": "y", "suspect": "true"}))
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.No("y/web", "x/web", "udp/80"), labtest.Yes("x/db", "x/web", "tcp/80"))
	api.expectAsked(t, "y ")
	close(api.late)
	c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("z/web", "x/web", "tcp/80"))
}

// TestNeededPodsWaitUntilTheyAreListed: the first packets of a pod that a new policy allows
// wait until the API server has listed the pod, and then pass.
func TestNeededPodsWaitUntilTheyAreListed(t *testing.T) {
	c := newCluster(t, 2, "x/web@1 app=web", "y/db@2 app=db", "z/db@2 app=db")
	api := c.neededAPI(t)
	agent := c.startNeeded(t, api)
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"))

	put(t, api.Server, policyOf(t, labtest.Policy("x", "web",
		`{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}, podSelector: {matchLabels: {app: db}}}]}]}`)))
	c.Expect(t, labtest.No("y/db", "x/web", "tcp/80"), labtest.No("z/db", "x/web", "tcp/80"))
	api.expectAsked(t, "y app=db")
	pending := func(m lab.Metrics) float64 { return m.Sum("netpol_queue_pending_total") }
	before := pending(labtest.Metrics(t, agent))
	answers := make(chan string)
	addrs := c.Hosts["x/web"].Addrs
	for _, addr := range addrs {
		go func() { // on a slow machine TCP retransmits its first packet
			answer, err := c.Hosts["y/db"].Probe(t.Context(), lab.TCP, netip.AddrPortFrom(addr, 80), 20*time.Second)
			answers <- fmt.Sprintf("%v: %v %v", addr, answer.Outcome, err)
		}()
	}
	if got := labtest.Until(t, agent, before+float64(len(addrs)), pending); got < before+float64(len(addrs)) {
		t.Errorf("%v packets wait for the list, want %d", got-before, len(addrs))
	}
	close(api.late)
	for range addrs {
		if got := <-answers; !strings.HasSuffix(got, "connected <nil>") {
			t.Errorf("a packet that waited: %s", got)
		}
	}
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("z/db", "x/web", "tcp/80"))
}
