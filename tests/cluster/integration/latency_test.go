package integration

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers"
)

// loadPeriod is how often SIG Scalability's load test creates a further policy while it measures network
// policies: kubernetes/perf-tests, clusterloader2/testing/load/modules/network-policy.
const loadPeriod = time.Second / 10

// While other policies are created, each agent lets its client reach targets as soon as a policy allows
// it or the target has an address, and no longer than the policy exists.
//
// CI asks a few agents. With AGENTS, TARGETS and LOAD, and with -v, this measures what
// network/tools/network-policy-enforcement-latency of kubernetes/perf-tests measures, for
// docs/performance: there clients connect, here the agents have no kernel, so a target is reached
// when an agent's snapshot allows the connection. The control is a watch of the same objects.
func TestEnforcementLatency(t *testing.T) {
	f := newLatencyFleet(t, number(t, "AGENTS", 4), number(t, "TARGETS", 10))
	f.createPolicy("deny")
	f.createTargets()
	f.await(denied)
	made := f.load(number(t, "LOAD", 20))

	f.measure("from the policy to the connection", allowed, f.policy(watch.Added), f.createAllow)
	f.measure("from the end of the policy to the denial", denied, f.policy(watch.Deleted), func() []time.Time {
		began := time.Now()
		f.deletePolicy(t.Context(), "allow")
		return []time.Time{began}
	})
	f.createAllow()
	f.await(allowed)
	for i := range f.targets {
		f.deletePod(t.Context(), target(i))
	}
	f.await(denied)
	f.measure("from the target's address to the connection", allowed, f.addresses(), f.createTargets)
	t.Logf("%d further policies were created meanwhile", made())
}

// latencyFleet is an API server with agents that have no kernel, each on a node of its own with a client.
type latencyFleet struct {
	*cluster
	agents  []*view
	targets int
}

func newLatencyFleet(t *testing.T, agents, targets int) *latencyFleet {
	t.Helper()
	// An API server of its own, because many agents would delay other tests.
	plane := must[*controlplane.ControlPlane](t)(controlplane.Start(t.Context(), controlplane.Config{Release: servers.Newest, Log: os.Stderr}))
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	config := plane.Admin()
	config.QPS = -1
	f := &latencyFleet{
		cluster: &cluster{t: t, client: must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(config)), namespace: "latency"},
		targets: targets,
	}
	f.createNamespace(f.namespace, nil)
	f.createNode("targets", "10.2.0.0/16")
	for i := range agents {
		node := fmt.Sprintf("node-%04d", i)
		f.createNode(node, clientAddress(i)+"/32")
		f.createPod(fmt.Sprintf("client-%04d", i), node, clientAddress(i))
		f.agents = append(f.agents, newView(t, plane.Admin(), node))
	}
	return f
}

func clientAddress(i int) string { return fmt.Sprintf("10.1.%d.%d", i/256, i%256) }
func targetAddress(i int) string { return fmt.Sprintf("10.2.%d.%d", i/256, i%256) }
func target(i int) string        { return fmt.Sprintf("target-%04d", i) }

// createPolicy writes a policy that selects all pods but targets for egress.
func (f *latencyFleet) createPolicy(name string, rules ...networkingv1.NetworkPolicyEgressRule) {
	f.t.Helper()
	must[*networkingv1.NetworkPolicy](f.t)(f.client.NetworkingV1().NetworkPolicies(f.namespace).Create(f.t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}, Egress: rules},
	}, metav1.CreateOptions{}))
}

// createAllow allows every client to connect to all targets.
func (f *latencyFleet) createAllow() (began []time.Time) {
	f.t.Helper()
	began = []time.Time{time.Now()}
	f.createPolicy("allow", networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}},
	}}}})
	return began
}

// createTargets writes the targets, one after the other.
func (f *latencyFleet) createTargets() (began []time.Time) {
	f.t.Helper()
	for i := range f.targets {
		began = append(began, time.Now())
		f.createPod(target(i), "targets", targetAddress(i))
	}
	return began
}

// load creates policies for pods that do not exist, ten a second, until made is called or there are
// enough. made returns their number.
func (f *latencyFleet) load(enough int) (made func() int) {
	ctx, stop := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	n := 0
	go func() {
		next := time.NewTicker(loadPeriod)
		defer next.Stop()
		for ; n < enough; n++ {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-next.C:
			}
			_, err := f.client.NetworkingV1().NetworkPolicies(f.namespace).Create(f.t.Context(), &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("load-%d", n)},
				Spec:       networkingv1.NetworkPolicySpec{PodSelector: ofApp(fmt.Sprintf("small-deployment-%d", n)), Ingress: []networkingv1.NetworkPolicyIngressRule{fromApp("client")}},
			}, metav1.CreateOptions{})
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	return func() int {
		f.t.Helper()
		stop()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
		return n
	}
}

// want says what an agent decides of a connection.
type want func(src, dst string, port uint16) claim

// claims returns those of one agent about all targets.
func (f *latencyFleet) claims(agent int, want want) (all []claim) {
	for i := range f.targets {
		all = append(all, want(clientAddress(agent), targetAddress(i), port))
	}
	return all
}

func (f *latencyFleet) await(want want) {
	f.t.Helper()
	for i, a := range f.agents {
		a.eventually(f.claims(i, want)...)
	}
}

// measure logs how long after each beginning the agents decide as wanted, and a watch shows the change.
// change returns when the change of each target began, or one time for all.
func (f *latencyFleet) measure(what string, want want, control *control, change func() []time.Time) {
	f.t.Helper()
	reached := make([][]time.Time, len(f.agents))
	var all errgroup.Group
	for i, a := range f.agents {
		all.Go(func() (err error) {
			reached[i], err = a.reached(f.claims(i, want))
			return err
		})
	}
	began := change()
	if err := all.Wait(); err != nil {
		f.t.Fatal(err)
	}
	var agents durations
	for _, times := range reached {
		agents = append(agents, since(began, times)...)
	}
	f.t.Logf("%s: %s; by the control %s", what, agents, since(began, control.wait()))
}

// since returns what lies between times and their beginnings, or one beginning.
func since(began, times []time.Time) (all durations) {
	for i, at := range times {
		all = append(all, at.Sub(began[min(i, len(began)-1)]))
	}
	return all
}

// reached returns when each of the claims held for the first time.
func (v *view) reached(claims []claim) ([]time.Time, error) {
	at := make([]time.Time, len(claims))
	limit := time.After(patience)
	for {
		v.mu.Lock()
		last, changed := v.last, v.changed
		v.mu.Unlock()
		missing := ""
		for i, c := range claims {
			if !at[i].IsZero() {
				continue
			}
			if wrong := check(last, []claim{c}); wrong != "" {
				missing = wrong
			} else {
				at[i] = time.Now()
			}
		}
		if missing == "" {
			return at, nil
		}
		select {
		case <-changed:
		case <-limit:
			return nil, fmt.Errorf("after %s: %s", patience, missing)
		}
	}
}

// control is a watch that enforces nothing.
type control struct {
	t    *testing.T
	done chan struct{} // closed when all have been seen
	at   []time.Time   // when the change of each was seen
}

// newControl waits for n changes. shows says which of them an event is.
func newControl(t *testing.T, w watch.Interface, n int, shows func(watch.Event) (i int, ok bool)) *control {
	c := &control{t, make(chan struct{}), make([]time.Time, n)}
	go func() {
		defer w.Stop()
		missing := n
		for e := range w.ResultChan() {
			i, ok := shows(e)
			if !ok || !c.at[i].IsZero() {
				continue
			}
			c.at[i] = time.Now()
			missing--
			if missing == 0 {
				close(c.done)
				return
			}
		}
	}()
	return c
}

// wait returns when the changes were seen.
func (c *control) wait() []time.Time {
	c.t.Helper()
	select {
	case <-c.done:
		return c.at
	case <-time.After(patience):
		c.t.Fatalf("the control did not see all changes within %s", patience)
		return nil
	}
}

// policy watches the policy that allows.
func (f *latencyFleet) policy(want watch.EventType) *control {
	f.t.Helper()
	w := must[watch.Interface](f.t)(f.client.NetworkingV1().NetworkPolicies(f.namespace).Watch(f.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=allow"}))
	return newControl(f.t, w, 1, func(e watch.Event) (int, bool) { return 0, e.Type == want })
}

// addresses watches the addresses of targets.
func (f *latencyFleet) addresses() *control {
	f.t.Helper()
	w := must[watch.Interface](f.t)(f.client.CoreV1().Pods(f.namespace).Watch(f.t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=targets"}))
	return newControl(f.t, w, f.targets, func(e watch.Event) (i int, ok bool) {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok || e.Type == watch.Deleted || pod.Status.PodIP == "" {
			return 0, false
		}
		_, err := fmt.Sscanf(pod.Name, "target-%d", &i)
		return i, err == nil
	})
}
