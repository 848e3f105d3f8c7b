package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/cmd/internal/buildversion"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// patient is an installation on two nodes, a and b, in this process. Its pods run at once, and its nodes
// enforce policies.
type patient struct {
	*fake.Clientset
	objects *dynamicfake.FakeDynamicClient
	// admin are administrators' policies.
	admin []compile.Object
	// agents are what agents answer, by node: a line of flows, or an error.
	agents  map[string]string
	metrics map[string]string
	writer  string
	// open nodes enforce nothing, and dead ones drop what reaches them.
	open, dead map[string]bool
	// execErr is the error of all commands in the pods that connect.
	execErr error
	// interrupt ends the context of the command.
	interrupt func()

	mu        sync.Mutex
	addresses int
}

const ready = `"version":"v0.2.0","pods":7,"snapshot":"2026-01-02T03:01:05Z"`

// stated returns the line of an agent with these further fields.
func stated(more string) string { return strings.TrimSuffix(agentLine, "}") + "," + more + "}" }

func newPatient() *patient {
	p := &patient{
		agents: map[string]string{"a": stated(ready), "b": stated(ready)}, metrics: map[string]string{}, writer: "v0.2.0",
		open: map[string]bool{}, dead: map[string]bool{},
	}
	lists := map[schema.GroupVersionResource]string{definitions: "CustomResourceDefinitionList"}
	for _, k := range compile.Kinds {
		for _, r := range k.Resources() {
			lists[r] = k.Name + "List"
		}
	}
	p.objects = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists)
	p.Clientset = fake.NewClientset(agentPod("a"), agentPod("b"), writerPod(), linuxNode("a"), linuxNode("b"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w", Labels: map[string]string{corev1.LabelOSStable: "windows"}}})
	p.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.37.2"}
	p.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.addresses++
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: readyCondition,
			PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.0.0.%d", p.addresses)}, {IP: fmt.Sprintf("fd00::%d", p.addresses)}}}
		return false, nil, nil
	})
	return p
}

var readyCondition = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}

func linuxNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
}

func agentPod(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent-" + node, Labels: map[string]string{"app.kubernetes.io/name": "netpol-agent"}},
		Spec:       corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Name: agentContainer, Args: []string{"--admin-policies"}}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: readyCondition},
	}
}

func writerPod() *corev1.Pod {
	key, value, _ := strings.Cut(writerSelector, "=")
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "writer", Labels: map[string]string{key: value}},
		Spec:       corev1.PodSpec{NodeName: "b", HostNetwork: true}, Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: readyCondition},
	}
}

// define adds a definition of ClusterNetworkPolicy.
func (p *patient) define(t *testing.T, release, version string) {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"versions": []any{map[string]any{"name": version, "served": true}}}}}
	o.SetAPIVersion("apiextensions.k8s.io/v1")
	o.SetKind("CustomResourceDefinition")
	o.SetName("clusternetworkpolicies.policy.networking.k8s.io")
	o.SetAnnotations(map[string]string{bundleVersion: release})
	if _, err := p.objects.Resource(definitions).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (p *patient) read(ctx context.Context) (clusterstate.Input, error) {
	in := clusterstate.Input{Features: compile.AllFeatures(), Policies: p.admin}
	namespaces, err := p.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return in, err
	}
	pods, err := p.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return in, err
	}
	policies, err := p.NetworkingV1().NetworkPolicies("").List(ctx, metav1.ListOptions{})
	for i := range namespaces.Items {
		in.Namespaces = append(in.Namespaces, &namespaces.Items[i])
	}
	for i := range pods.Items {
		in.Pods = append(in.Pods, &pods.Items[i])
	}
	for i := range policies.Items {
		in.Policies = append(in.Policies, &policies.Items[i])
	}
	return in, err
}

// exec runs the commands of the doctor.
func (p *patient) exec(ctx context.Context, pod types.NamespacedName, container string, command []string, out, errs io.Writer) error {
	node := strings.TrimPrefix(pod.Name, "agent-")
	text := ""
	switch line := strings.Join(command, " "); {
	case container == roleLabel:
		return p.connects(ctx, pod, command[len(command)-1], errs)
	case container == writerContainer && line == "status-writer version":
		text = "status-writer, version " + p.writer + " (commit 1 of 2, go1.26, linux/amd64)\n"
	case container == agentContainer && line == "kube-network-policies flows --pod=-":
		text = strings.ReplaceAll(p.agents[node], "NODE", node) + "\n"
	case container == agentContainer && line == "kube-network-policies probe table":
		text = "table inet netpol-agent: ours\n"
	case container == agentContainer && line == "kube-network-policies probe metrics":
		text = "netpol_node_problems{cause=\"queue\"} 0\n" + p.metrics[node]
	default:
		return fmt.Errorf("%s: no command %q", container, line)
	}
	if !strings.HasSuffix(text, "}\n") && container == agentContainer && strings.Contains(text, "exec") {
		return errors.New(strings.TrimSpace(text))
	}
	_, err := io.WriteString(out, text)
	return err
}

// connects decides about a connection, as the kernels of both nodes would.
func (p *patient) connects(ctx context.Context, client types.NamespacedName, to string, errs io.Writer) error {
	if p.execErr != nil {
		return p.execErr
	}
	in, err := p.read(ctx)
	if err != nil {
		return err
	}
	address := netip.MustParseAddrPort(to)
	c := reachability.New(in)
	src, errFrom := c.Endpoint(client.String())
	dst, errTo := c.Endpoint(address.Addr().String())
	if err := errors.Join(errFrom, errTo); err != nil {
		return err
	}
	e := c.Explain(&src, &dst, reachability.Port{Proto: packet.TCP, Number: address.Port()}, reachability.FirstCommon)
	denied := p.dead[dst.Node]
	for i := range e.Directions {
		denied = denied || !e.Directions[i].Allowed && !p.open[e.Directions[i].Node]
	}
	if denied {
		fmt.Fprintln(errs, "TIMEOUT")
		return errors.New("exit code 1")
	}
	return nil
}

// examine runs the command and returns its exit code and output.
func (p *patient) examine(t *testing.T, args ...string) (code int, stdout string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		p.interrupt = interrupt
		defer interrupt()
		d := &doctorOptions{agentOptions: agentOptions{options: &options{notes: io.Discard}}}
		d.reach = func() (*doctorCluster, error) {
			return &doctorCluster{client: p, objects: p.objects, exec: p.exec, read: p.read}, nil
		}
		cmd := newDoctorWith(d)
		var out bytes.Buffer
		cmd.SetArgs(append([]string{}, args...)) // nil stands for the flags of the test
		cmd.SetOut(&out)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err := cmd.ExecuteContext(ctx)
		stdout, code = out.String(), exitYes
		switch {
		case errors.Is(err, errNo):
			code = exitNo
		case err != nil:
			code = exitError
			stdout += "error: " + err.Error() + "\n"
		}
	})
	return code, stdout
}

// left returns the namespaces that are left.
func (p *patient) left(t *testing.T) (names []string) {
	t.Helper()
	list, err := p.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range list.Items {
		names = append(names, ns.Name)
	}
	return names
}

func TestDoctorOfAHealthyCluster(t *testing.T) {
	p := newPatient()
	p.define(t, "v0.3.0", "v1beta1")
	var created *corev1.Pod
	p.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		created = action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		return false, nil, nil
	})
	code, got := p.examine(t)
	want := `NODE  AGENT                VERSION  PODS  SNAPSHOT  READY
a     kube-system/agent-a  v0.2.0   7     3m ago    yes
b     kube-system/agent-b  v0.2.0   7     3m ago    yes
API server v1.37.2, status writer v0.2.0, plugin ` + buildversion.Version() + `, ClusterNetworkPolicy v0.3.0
48 connections made
Healthy
`
	if code != exitYes || got != want || len(p.left(t)) > 0 {
		t.Errorf("exit code %d, namespaces %q left\n%s", code, p.left(t), got)
	}
	if s := created.Spec; *s.AutomountServiceAccountToken || !*s.SecurityContext.RunAsNonRoot || s.Tolerations[0].Operator != corev1.TolerationOpExists {
		t.Errorf("the pod has a token, is root or is tainted away: %+v", s)
	}
}

func TestDoctorFinds(t *testing.T) {
	for name, tt := range map[string]struct {
		ill  func(*patient)
		want string
		more int // further findings
	}{
		"a node that enforces nothing": {func(p *patient) { p.open["b"] = true },
			"node b: a connection is made that policies deny (node a to b, TCP 8081, IPv4, and 7 more): see what its agent's log", 0},
		"a node that drops everything": {func(p *patient) { p.dead["b"] = true }, "nodes a and b: pods do not connect, and no policy denies it (node a to b, TCP 8080", 1},
		"no agent on a node": {func(p *patient) { _ = p.Tracker().Delete(podsResource, "kube-system", "agent-b") },
			"node b: no agent runs there, and policies are not enforced: see why the DaemonSet has no pod on it", 0},
		"no agents": {func(p *patient) {
			_ = p.Tracker().Delete(podsResource, "kube-system", "agent-a")
			_ = p.Tracker().Delete(podsResource, "kube-system", "agent-b")
		}, "namespace kube-system: no agents run: install them", 0},
		"an agent that is not ready": {func(p *patient) {
			p.agents["b"] = stated(`"version":"v0.2.0","pods":0,"notReady":"no snapshot of the cluster yet"`)
		},
			"node b: its agent is not ready: no snapshot of the cluster yet: see the log of pod kube-system/agent-b", 0},
		"an agent that cannot be asked": {func(p *patient) { p.agents["b"] = "exec is refused" }, "node b: its agent is not ready: exec is refused", 0},
		"a stopped agent": {func(p *patient) {
			pod := agentPod("b")
			pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
				Name:                 agentContainer,
				State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}},
			}}}
			_ = p.Tracker().Update(podsResource, pod, "kube-system")
			p.agents["b"] = "exec: container not found"
		}, "node b: its agent is not ready: CrashLoopBackOff: back-off 5m (it ended with exit code 2)", 0},
		"a problem of a node": {func(p *patient) { p.metrics["a"] = "netpol_node_problems{cause=\"bridge_netfilter\"} 2\n" },
			"node a: its agent reports the problem bridge_netfilter: load br_netfilter", 0},
		"a problem that only newer agents know": {func(p *patient) { p.metrics["a"] = "netpol_node_problems{cause=\"moon\"} 1\n" }, "moon: see netpol_node_problems", 0},
		"agents that only audit": {func(p *patient) {
			p.agents["a"] = strings.Replace(stated(ready), `"cursor"`, `"auditOnly":true,"cursor"`, 1)
		}, "node a: its agent only audits policies", 0},
		"agents of two versions": {func(p *patient) { p.agents["b"] = strings.Replace(stated(ready), "v0.2.0", "v0.3.0", 1) },
			"agents: they have different versions: v0.2.0 on a; v0.3.0 on b: finish the rollout", 0},
		"a writer of another version": {func(p *patient) { p.writer = "v0.4.1" },
			"status writer: its version v0.4.1 is more than 1 minor version from that of the agents, v0.2.0", 0},
		"a writer that is not ready": {func(p *patient) {
			pod := writerPod()
			pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
			_ = p.Tracker().Update(podsResource, pod, "kube-system")
		}, "status writer: its pod kube-system/writer is not ready: the pod is Pending", 0},
		"an old API server": {func(p *patient) {
			p.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.26.15"}
		}, "API server: its version v1.26.15 is not among those that are supported, 1.27 to 1.37", 0},
		"a newer API server": {func(p *patient) {
			p.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &version.Info{GitVersion: "v1.38.0-rc.1"}
		}, "API server: its version v1.38.0-rc.1 is not", 0},
		"a newer definition":               {func(p *patient) { p.define(t, "v0.4.0", "v1beta1") }, "it is of release v0.4.0, and v0.3.0 is the newest that is known", 0},
		"a definition that no agent reads": {func(p *patient) { p.define(t, "v1.0.0", "v1") }, "agents read none of its versions (v1): install that of network-policy-api v0.3.0", 0},
		"policies that agents do not read": {func(p *patient) {
			p.define(t, "v0.3.0", "v1beta1")
			pod := agentPod("b")
			pod.Spec.Containers[0].Args = []string{"--admin-policies=false"}
			_ = p.Tracker().Update(podsResource, pod, "kube-system")
			policy := &unstructured.Unstructured{}
			policy.SetGroupVersionKind(schema.GroupVersionKind{Group: "policy.networking.k8s.io", Version: "v1beta1", Kind: "ClusterNetworkPolicy"})
			policy.SetName("p")
			r := schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: "v1beta1", Resource: "clusternetworkpolicies"}
			if _, err := p.objects.Resource(r).Create(context.Background(), policy, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}, "nodes b: their agents do not read the ClusterNetworkPolicys that there are: run them with --admin-policies", 0},
		"terminal sequences of a cluster": {func(p *patient) { p.agents["b"] = stated(`"version":"v0.2.0","pods":0,"notReady":"\u001b[2Jgone"`) }, "is not ready: ?[2Jgone", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient()
			tt.ill(p)
			code, got := p.examine(t)
			if code != exitNo || !strings.Contains(got, "Finding: ") || !strings.Contains(got, tt.want) || strings.Count(got, "Finding: ") != 1+tt.more || len(p.left(t)) > 0 {
				t.Errorf("exit code %d, namespaces %q left\n%s\nwant %s", code, p.left(t), got, tt.want)
			}
		})
	}
}

var podsResource = corev1.SchemeGroupVersion.WithResource("pods")

// Policies of administrators, which come first, count as they are meant.
func TestDoctorKnowsOtherPolicies(t *testing.T) {
	for name, spec := range map[string]string{
		"everything is denied":  `{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`,
		"everything is allowed": `{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Accept","from":[{"namespaces":{}}]}],"egress":[{"action":"Accept","to":[{"namespaces":{}}]}]}`,
		"denied by default":     `{"tier":"Baseline","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient()
			p.admin = []compile.Object{clusterPolicy(t, spec)}
			if code, got := p.examine(t); code != exitYes {
				t.Errorf("exit code %d\n%s", code, got)
			}
		})
	}
}

func clusterPolicy(t *testing.T, spec string) compile.Object {
	t.Helper()
	o := compile.KindClusterNetworkPolicy.New()
	if err := json.Unmarshal([]byte(`{"metadata":{"name":"p"},"spec":`+spec+`}`), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// What cannot be examined is no finding, and not healthy either. Nothing is left in any case.
func TestDoctorCannotSay(t *testing.T) {
	forbidden := func(what string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: what}, "", errors.New("no right"))
	}
	refuse := func(verb, resource string) func(*patient) {
		return func(p *patient) {
			p.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, forbidden(resource) })
		}
	}
	for name, tt := range map[string]struct {
		ill  func(*patient)
		want string
	}{
		"nodes":                 {refuse("list", "nodes"), "error: list nodes: nodes is forbidden"},
		"no namespace":          {refuse("create", "namespaces"), "Not known: connections: create namespace netpol-doctor-"},
		"no pods":               {refuse("create", "pods"), "Not known: connections: create pod "},
		"no policies":           {refuse("create", "networkpolicies"), "Not known: connections: create NetworkPolicy server: "},
		"no commands in pods":   {func(p *patient) { p.execErr = errors.New("pods/exec is forbidden") }, "Not known: connections of node a: pods/exec is forbidden\nNot known: connections of node b: "},
		"pods that do not run":  {func(p *patient) { p.stick("b") }, "Not known: connections of node b: its pod does not run: ImagePullBackOff: no such image; --image names another image"},
		"a node that is away":   {func(p *patient) { p.awayNode("b") }, "Not known: connections of node b: the node is not ready"},
		"definitions":           {func(p *patient) { p.forbidDefinitions(forbidden("customresourcedefinitions")) }, "Not known: definition of ClusterNetworkPolicy: "},
		"agents without probes": {func(p *patient) { p.metrics["b"] = "exec: unknown argument" }, "Not known: problems of node b: "},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPatient()
			tt.ill(p)
			code, got := p.examine(t)
			if code != exitError || !strings.Contains(got, tt.want) || strings.Contains(got, "Finding") || strings.Contains(got, "Healthy") || len(p.left(t)) > 0 {
				t.Errorf("exit code %d, namespaces %q left\n%s\nwant %s", code, p.left(t), got, tt.want)
			}
		})
	}
}

// stick keeps pods of a node from running.
func (p *patient) stick(node string) {
	p.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		if pod.Spec.NodeName != node {
			return false, nil, nil
		}
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: roleLabel, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}},
		}}}
		return true, pod, p.Tracker().Create(podsResource, pod, pod.Namespace)
	})
}

func (p *patient) awayNode(name string) {
	node := linuxNode(name)
	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	_ = p.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), node, "")
}

func (p *patient) forbidDefinitions(err error) {
	p.objects.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// The namespace is deleted when the command is interrupted, when the answer about
// its creation is lost, and when the first attempts to delete it fail.
func TestDoctorLeavesNothing(t *testing.T) {
	for _, at := range []string{"namespaces", "pods", "networkpolicies"} {
		p := newPatient()
		p.PrependReactor("create", at, func(clienttesting.Action) (bool, runtime.Object, error) {
			p.interrupt()
			return false, nil, nil
		})
		if code, got := p.examine(t); code != exitError || !strings.Contains(got, "context canceled") || len(p.left(t)) > 0 {
			t.Errorf("interrupted while %s are created: exit code %d, %q left\n%s", at, code, p.left(t), got)
		}
	}

	p := newPatient()
	p.PrependReactor("create", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
		ns := action.(clienttesting.CreateAction).GetObject().(*corev1.Namespace)
		_ = p.Tracker().Create(corev1.SchemeGroupVersion.WithResource("namespaces"), ns, "")
		return true, nil, errors.New("connection reset")
	})
	refusals := 3
	p.PrependReactor("delete", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals--
		return refusals >= 0, nil, apierrors.NewServiceUnavailable("try again")
	})
	if code, got := p.examine(t); code != exitError || len(p.left(t)) > 0 {
		t.Errorf("exit code %d, %q left\n%s", code, p.left(t), got)
	}

	p = newPatient()
	p.PrependReactor("delete", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("try again")
	})
	if code, got := p.examine(t); code != exitError || !strings.Contains(got, "namespace "+p.left(t)[0]+" may be left, delete it: try again") {
		t.Errorf("exit code %d\n%s", code, got)
	}
}

// Nothing is created without connections.
func TestDoctorOnlyReads(t *testing.T) {
	p := newPatient()
	code, got := p.examine(t, "--connect=false", "-o", "json")
	var read diagnosis
	if err := json.Unmarshal([]byte(got), &read); err != nil || code != exitYes || len(read.Agents) != 2 || read.Agents[0].Version != "v0.2.0" || read.Findings == nil {
		t.Errorf("exit code %d, %v\n%s", code, err, got)
	}
	for _, a := range p.Actions() {
		if !slices.Contains([]string{"list", "get"}, a.GetVerb()) {
			t.Errorf("a request to %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
}

func TestDoctorAndWhatItReplaces(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for command, want := range map[string]string{
		"doctor -o yaml":               "--output=yaml: must be one of text, json",
		"doctor -f shop":               "--filename: only a live cluster is examined",
		"doctor":                       "read kubeconfig: ",
		"assert x.yaml --probe":        "--probe: the flag was removed: kubectl netpol doctor makes real connections",
		"assert x.yaml --probe-image=": "--probe-image=: the flag was removed",
		"unused":                       "unused: the command was removed: kubectl netpol list has a column for what is unused",
		"-n shop unused --days 7":      "unused: the command was removed",
	} {
		if code, _, stderr := call(t, "", command); code != exitError || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %s, want %s", command, code, stderr, want)
		}
	}
}
