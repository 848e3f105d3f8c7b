package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// cluster has three nodes with an agent each, and a writer that leads.
type cluster struct {
	*Gate
	*statustest.Agents
	t      *testing.T
	client *fake.Clientset
	reg    *prometheus.Registry
	stop   func() // ends the leadership

	mu       sync.Mutex
	versions map[string]string // known to the writer
	unknown  error
	writes   []string // of the pods, by name
	refuse   error    // what the API server answers
	before   func()   // called once, before a write
}

// inBubble runs a Gate of three nodes whose agents enforce all that is known.
func inBubble(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		all, objects := statustest.NewAgents(3, answer("100", "100", "100"))
		c := &cluster{
			Agents: all, t: t, client: fake.NewClientset(objects...), reg: prometheus.NewPedanticRegistry(),
			versions: map[string]string{"NetworkPolicy": "90", "Namespace": "40"},
		}
		c.client.PrependReactor("patch", "pods", c.patch)
		rounds, err := enforced.New(enforced.Config{Pods: statustest.PodsOf(c.client, statustest.AgentsNamespace), Nodes: statustest.NodesOf(c.client), Agents: statustest.AgentsSelector, Ask: c.Ask, Registerer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		if c.Gate, err = New(Config{Pods: func(namespace string) Pods { return statustest.PodsOf(c.client, namespace) }, Rounds: rounds, Conditions: []corev1.PodConditionType{PoliciesEnforced, NetworkReady}, FieldManager: "writer", Registerer: c.reg}); err != nil {
			t.Fatal(err)
		}
		c.lead()
		defer func() { c.stop() }()
		pass(10 * time.Second)
		test(t, c)
	})
}

// lead runs Gate and rounds until stop is called.
func (c *cluster) lead() {
	_, ctx := ktesting.NewTestContext(c.t)
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { c.cfg.Rounds.Run(ctx, func(enforced.Policy) {}) })
	all.Go(func() { c.Run(ctx, c.known) })
	c.stop = func() { cancel(); all.Wait() }
}

func (c *cluster) known() (map[string]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.versions), c.unknown
}

// patch is the API server: another UID than that of the pod is refused.
func (c *cluster) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchAction)
	c.mu.Lock()
	before, refuse := c.before, c.refuse
	c.before = nil
	c.mu.Unlock()
	if before != nil {
		before()
	}
	var sent struct {
		Metadata struct{ UID types.UID }
	}
	if err := json.Unmarshal(patch.GetPatch(), &sent); err != nil || sent.Metadata.UID == "" || patch.GetSubresource() != "status" {
		c.t.Errorf("the patch of %q is %s, %v", patch.GetSubresource(), patch.GetPatch(), err)
	}
	if refuse != nil {
		return true, nil, refuse
	}
	found, err := c.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), patch.GetNamespace(), patch.GetName())
	if err != nil {
		return true, nil, err
	}
	if found.(*corev1.Pod).UID != sent.Metadata.UID {
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, patch.GetName(), field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), sent.Metadata.UID, "field is immutable")})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, patch.GetName())
	return false, nil, nil
}

// answer is that of an agent which enforces what is known up to some versions.
func answer(policies, namespaces, pods string) inforce.Answer {
	var a inforce.Answer
	for kind, version := range map[string]string{"NetworkPolicy": policies, "Namespace": namespaces, "Pod": pods} {
		a.Kinds = append(a.Kinds, inforce.Kind{Kind: kind, Version: version, Seen: version})
	}
	return a
}

func (c *cluster) setKnown(versions map[string]string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.versions, c.unknown = versions, err
}

func (c *cluster) setRefused(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = err
}

func (c *cluster) setBefore(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.before = f
}

// web is a pod with the gate on node-1, changed by change.
func web(version string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web-1", ResourceVersion: version},
		Spec:       corev1.PodSpec{NodeName: "node-1", ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/other"}, {ConditionType: PoliciesEnforced}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func withoutAddress(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs = "", nil }

func (c *cluster) create(p *corev1.Pod) {
	c.t.Helper()
	if err := c.client.Tracker().Add(p); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) update(p *corev1.Pod) {
	c.t.Helper()
	if err := c.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, p.Namespace); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) remove(p *corev1.Pod) {
	c.t.Helper()
	if err := c.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), p.Namespace, p.Name); err != nil {
		c.t.Fatal(err)
	}
}

// get returns the pod web.
func (c *cluster) get() *corev1.Pod {
	c.t.Helper()
	p, err := c.client.CoreV1().Pods("shop").Get(c.t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// want expects the condition of the pod web, "" for none, and how often it was written since the last
// call.
func (c *cluster) want(when, want string, writes int) {
	c.t.Helper()
	p, got := c.get(), ""
	if now := conditionOf(p, PoliciesEnforced); now != nil {
		got = fmt.Sprintf("%s %s: %s", now.Status, now.Reason, now.Message)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if got != want || len(c.writes) != writes {
		c.t.Errorf("%s: after %d writes, want %d, the condition is\n%s\nwant\n%s", when, len(c.writes), writes, got, want)
	}
	if !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.ContainersReady }) {
		c.t.Errorf("%s: the conditions are %v", when, p.Status.Conditions)
	}
	c.writes = nil
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

const onAll = "True EnforcedOnAllNodes: Policies are in force on its node, and all 3 nodes know the pod."

var errTimeout = errors.New("timeout")
