package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// world is a fake cluster with two nodes and without a kubelet: created pods run
// immediately.
type world struct {
	*fake.Clientset
	objects *dynamicfake.FakeDynamicClient // cluster-scoped policies
	mu      sync.Mutex
	count   int // addresses assigned so far
	// failure returns the kind of failure of an attempt, "" if it succeeds.
	failure func(from, address string) string
	// commands counts the commands run in each pod.
	commands map[string]int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	lists := make(map[schema.GroupVersionResource]string)
	for _, k := range allKinds {
		lists[k.resource] = k.name + "List"
	}
	w := &world{objects: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists), failure: func(string, string) string { return "" }, commands: map[string]int{}}
	w.Clientset = fake.NewClientset(
		node("one", "192.168.0.1"), node("two", "192.168.0.2"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "control"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "control"}}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}})
	w.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.count++
		switch object := action.(clienttesting.CreateAction).GetObject().(type) {
		case *corev1.Pod:
			object.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}, PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.0.0.%d", w.count)}}}
		case *corev1.Service:
			object.Spec.ClusterIPs, object.Spec.IPFamilies = []string{fmt.Sprintf("10.96.0.%d", w.count)}, []corev1.IPFamily{corev1.IPv4Protocol}
			giveNodePorts(object, w.count)
		}
		return false, nil, nil // continue with the store
	})
	return w
}

func node(name, address string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address},
	}}}
}

// giveNodePorts assigns ports of nodes that tell Services and their ports apart.
func giveNodePorts(service *corev1.Service, number int) {
	if service.Spec.Type != corev1.ServiceTypeNodePort {
		return
	}
	for i := range service.Spec.Ports {
		service.Spec.Ports[i].NodePort = int32(30000 + 10*number + i)
	}
}

// run answers like the prober. Held connections are silent.
func (w *world) run(ctx context.Context, namespace, pod string, command []string, in io.Reader, out, _ io.Writer) error {
	if slices.Equal(command, holdCommand) {
		return holdIn(func(string, attempt) string { return "" })(ctx, namespace, pod, command, in, out, nil)
	}
	if want := (prober{}).try(); !slices.Equal(command, want) {
		return fmt.Errorf("command %v, want %v", command, want)
	}
	w.mu.Lock()
	w.commands[namespace+"/"+pod]++
	w.mu.Unlock()
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	lines := make(chan attempt)
	go func() {
		defer close(lines)
		for {
			var a attempt
			if decoder.Decode(&a) != nil {
				return
			}
			select {
			case lines <- a:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case a, ok := <-lines:
			if !ok {
				return nil
			}
			_, address, _ := strings.Cut(a.Target, "://")
			if err := encoder.Encode(result{ID: a.ID, Failure: w.failure(namespace+"/"+pod, address), Took: 1.5}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *world) backend(t *testing.T, cfg Config) *Backend {
	t.Helper()
	cfg.Prober, cfg.Families = "prober", []corev1.IPFamily{corev1.IPv4Protocol}
	b, err := newBackend(t.Context(), w, w.objects, "t", w.run, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestApply(t *testing.T) {
	w := newWorld(t)
	b := w.backend(t, Config{})
	state := netpol.Model{}.State()
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	pods, _ := w.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
	if len(pods.Items) != 9 {
		t.Fatalf("%d pods, want 9", len(pods.Items))
	}
	pod := pods.Items[1] // x/b
	if pod.Spec.NodeName != "two" || len(pod.Spec.Containers) != 1 || pod.Labels["pod"] != "b" {
		t.Errorf("pod %s on %s with %d containers and labels %v", pod.Name, pod.Spec.NodeName, len(pod.Spec.Containers), pod.Labels)
	}
	if name := pod.Spec.Containers[0].Ports[0].Name; name != "tcp-80" {
		t.Errorf("the first port is called %q", name)
	}
	old := state.Addr("x/a", corev1.IPv4Protocol)

	state = state.Clone()
	state.LabelPod("x/b", "pod=other")
	state.LabelNamespace("y", "team=red")
	state.RecreatePod("x/a")
	state.DeletePod("z/c")
	state.Apply(netpol.NewPolicy("x", "p", netpol.DenyIngress()))
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	if now := state.Addr("x/a", corev1.IPv4Protocol); now == old {
		t.Errorf("x/a was not recreated: it still has %s", now)
	}
	changed, _ := w.CoreV1().Pods("t-x").Get(t.Context(), "b", metav1.GetOptions{})
	namespace, _ := w.CoreV1().Namespaces().Get(t.Context(), "t-y", metav1.GetOptions{})
	if changed.Labels["pod"] != "other" || namespace.Labels["team"] != "red" {
		t.Errorf("labels of x/b %v, of y %v", changed.Labels, namespace.Labels)
	}
	if pods, _ := w.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); len(pods.Items) != 8 {
		t.Errorf("%d pods, want 8", len(pods.Items))
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if namespaces, _ := w.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); len(namespaces.Items) != 1 {
		t.Errorf("%d namespaces are left, want the one that was there", len(namespaces.Items))
	}
}

// The next scenario may have a pod of the same name on another node.
func TestPodsMoveToTheirNode(t *testing.T) {
	b := newWorld(t).backend(t, Config{})
	for _, tt := range []struct {
		pods []string
		want string // the node of y/a
	}{{[]string{"a", "b", "c"}, "two"}, {[]string{"a", "b"}, "one"}} {
		if err := b.Apply(t.Context(), netpol.Model{Pods: tt.pods}.State()); err != nil {
			t.Fatal(err)
		}
		pod, err := b.client.CoreV1().Pods("t-y").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || pod.Spec.NodeName != tt.want {
			t.Errorf("with %d pods in each namespace y/a runs on %s, want %s (error %v)", len(tt.pods), pod.Spec.NodeName, tt.want, err)
		}
	}
}

// What the API server cannot do at the moment is tried again, and what it refuses is not.
func TestApplyTriesAgain(t *testing.T) {
	for _, c := range []struct {
		fails        int
		with         error
		applied      bool
		retries      int
		wantsRefused bool
	}{
		{fails: 2, with: apierrors.NewServiceUnavailable("starting"), applied: true, retries: 2},
		{fails: 1, with: apierrors.NewConflict(schema.GroupResource{Resource: "networkpolicies"}, "p", errors.New("changed")), applied: true, retries: 1},
		{fails: 9, with: apierrors.NewInternalError(errors.New("no leader")), retries: 2},
		{fails: 1, with: apierrors.NewInvalid(schema.GroupKind{Kind: "NetworkPolicy"}, "p", nil), wantsRefused: true},
	} {
		w := newWorld(t)
		fails := c.fails
		w.PrependReactor("create", "networkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
			fails--
			return fails >= 0, nil, c.with
		})
		b := w.backend(t, Config{})
		state := netpol.Model{}.State()
		state.Apply(netpol.NewPolicy("x", "p", netpol.DenyIngress()))
		err := b.Apply(t.Context(), state)
		environment, _ := b.Environment(t.Context())
		if (err == nil) != c.applied || environment.Retries != c.retries || errors.Is(err, netpol.ErrRefused) != c.wantsRefused {
			t.Errorf("after %d times %v: %v, %d retries", c.fails, c.with, err, environment.Retries)
		}
	}
}

func TestApplyRejectsForeignNamespace(t *testing.T) {
	w := newWorld(t)
	if _, err := w.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "t-x"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	b := w.backend(t, Config{})
	if err := b.Apply(t.Context(), netpol.Model{}.State()); err == nil || !strings.Contains(err.Error(), "namespace t-x") {
		t.Errorf("Apply = %v, want an error about namespace t-x", err)
	}
}

// A pod whose account changes is replaced, and its account exists.
func TestServiceAccounts(t *testing.T) {
	w := newWorld(t)
	b := w.backend(t, Config{})
	state := netpol.Model{Namespaces: []string{"x"}}.State()
	for _, account := range []string{"", "web", "default", "web"} {
		before := state.Pods[0].Status.PodIPs
		state = state.Clone()
		state.ChangePod("x/a", func(p *corev1.Pod) { p.Spec.ServiceAccountName = account })
		if err := b.Apply(t.Context(), state); err != nil {
			t.Fatal(err)
		}
		pod, err := w.CoreV1().Pods("t-x").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || pod.Spec.ServiceAccountName != account {
			t.Errorf("got account %q and error %v, want %q", pod.Spec.ServiceAccountName, err, account)
		}
		if slices.Equal(before, state.Pods[0].Status.PodIPs) {
			t.Errorf("the pod with account %q is the one before it", account)
		}
	}
	if _, err := w.CoreV1().ServiceAccounts("t-x").Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestPlayScenario makes attempts fail where a policy denies all ingress.
func TestPlayScenario(t *testing.T) {
	for _, services := range []bool{false, true} {
		t.Run(fmt.Sprintf("services %v", services), func(t *testing.T) { playScenario(t, services) })
	}
}

func playScenario(t *testing.T, services bool) {
	w := newWorld(t)
	b := w.backend(t, Config{ViaServices: services})
	w.failure = func(from, address string) string {
		if services != strings.HasPrefix(address, "10.96.") {
			t.Errorf("services %v: connected to %s", services, address)
		}
		policies, _ := w.NetworkingV1().NetworkPolicies("t-x").List(context.Background(), metav1.ListOptions{})
		host, _, _ := strings.Cut(address, ":")
		if len(policies.Items) > 0 && b.podAt(host) != from && strings.HasPrefix(b.podAt(host), "x/") {
			return "timeout"
		}
		return ""
	}
	result := netpol.Runner{Backend: b, Settle: 1}.Play(t.Context(), netpol.Scenario{
		Name: "deny", Steps: []netpol.Step{{
			Change: func(s *netpol.State) { s.Apply(netpol.NewPolicy("x", "deny", netpol.DenyIngress())) },
			Want:   func(r *netpol.Reachability) { r.ExpectAllIngress("x/*", false) },
		}},
	})
	if held := 8 * 3 * 4; !result.OK() || result.Cells() != 4*81 || result.Steps[0].Established.Cut != held || !slices.Equal(result.Unsupported, []string{"IPv6"}) {
		t.Errorf("%d cells, unsupported %v\n%s", result.Cells(), result.Unsupported, result.Report(netpol.ASCII, false))
	}
}

// Pods in the network of their node have no Service and no sysctls, and their namespace admits them.
// A second Apply recreates none. Echo requests need no port and no Service.
func TestHostNetworkAndICMP(t *testing.T) {
	w := newWorld(t)
	b := w.backend(t, Config{HostNetwork: true, ViaServices: true})
	model := netpol.Model{Namespaces: []string{"x"}, Pods: []string{"a", "b"}, HostNetwork: true, Ports: []int32{80}, Vias: []netpol.Via{netpol.Service},
		Protocols: []corev1.Protocol{corev1.ProtocolTCP, netpol.ICMP}, Families: []corev1.IPFamily{corev1.IPv4Protocol}}
	var mu sync.Mutex
	addresses := make(map[string]bool)
	w.failure = func(_, address string) string {
		mu.Lock()
		defer mu.Unlock()
		addresses[address] = true
		return ""
	}

	result := netpol.Runner{Backend: b, Settle: 1}.Play(t.Context(), netpol.Scenario{Name: "all", Model: model, Steps: []netpol.Step{{}}})

	if !result.OK() || len(result.Unsupported) > 0 {
		t.Fatalf("unsupported %v\n%s", result.Unsupported, result.Report(netpol.ASCII, true))
	}
	pod, err := w.CoreV1().Pods("t-host").Get(t.Context(), "node-2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if user := pod.Spec.SecurityContext.RunAsUser; user == nil || *user != 0 {
		t.Errorf("a host-network pod runs as %v, and cannot bind port 80 unless it is root", user)
	}
	if !pod.Spec.HostNetwork || len(pod.Spec.SecurityContext.Sysctls) > 0 || pod.Spec.Containers[0].Ports[0].HostPort != 80 {
		t.Errorf("host/node-2 has %+v", pod.Spec)
	}
	namespace, err := w.CoreV1().Namespaces().Get(t.Context(), "t-host", metav1.GetOptions{})
	if err != nil || namespace.Labels[podSecurityLabel] != "privileged" {
		t.Errorf("%v; the labels of namespace host are %v", err, namespace.Labels)
	}
	own := pod.Status.PodIPs[0].IP
	for _, want := range []string{own, own + ":80"} {
		if !addresses[want] {
			t.Errorf("nothing tried %s, but %v", want, addresses)
		}
	}
	if got := strings.Count(strings.Join(slices.Collect(maps.Keys(addresses)), " "), "10.96."); got != 2 {
		t.Errorf("%d Services were tried, want those of x/a and x/b: %v", got, addresses)
	}
}

// podAt returns the pod with that address, or with a Service that has it.
func (b *Backend) podAt(address string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	for way, known := range b.addresses {
		if known == address {
			return way.to
		}
	}
	return ""
}

func TestConfigValidate(t *testing.T) {
	err := Config{PodTimeout: -1}.Validate()
	for _, field := range []string{"Image", "Families", "PodTimeout"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("Validate = %v, want %s in it", err, field)
		}
	}
}
