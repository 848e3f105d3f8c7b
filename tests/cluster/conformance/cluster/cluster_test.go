package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifests"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// fakeNetwork records what is applied and returns configured results.
type fakeNetwork struct {
	objects manifests.Objects
	refuse  error // of Apply
	attempt Attempt
	outcome netpol.Outcome
	err     error // of Connect
}

func (f *fakeNetwork) Nodes() []*corev1.Node {
	return []*corev1.Node{newNode(1), newNode(2)}
}

func newNode(number int) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", number)},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", number), fmt.Sprintf("fd00:%d::/64", number)}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.18.0.%d", number)}}},
	}
}

func (f *fakeNetwork) Apply(_ context.Context, objects manifests.Objects) error {
	if f.refuse == nil {
		f.objects = objects
	}
	return f.refuse
}

func (f *fakeNetwork) Connect(_ context.Context, attempt Attempt) (netpol.Outcome, error) {
	f.attempt = attempt
	return f.outcome, f.err
}

func newClient(t *testing.T, cfg Config) (*kubernetes.Clientset, *rest.Config) {
	t.Helper()
	server, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	listening := httptest.NewServer(server)
	t.Cleanup(listening.Close)
	access := &rest.Config{Host: listening.URL, QPS: -1}
	access.ContentType = "application/json"
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	return client, access
}

func newSet(hostNetwork bool) *appsv1.StatefulSet {
	replicas := int32(2)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "house", Name: "wizard"}}
	set.Spec.Replicas = &replicas
	set.Spec.Template.Labels = map[string]string{"app": "wizard"}
	set.Spec.Template.Spec = corev1.PodSpec{HostNetwork: hostNetwork, Containers: []corev1.Container{{Name: "wizard-client"}}}
	return set
}

func TestStatefulSetCreatesPods(t *testing.T) {
	for _, c := range []struct {
		name        string
		family      corev1.IPFamily
		hostNetwork bool
		apart       bool
		want        [2]string // node and address of both pods
	}{
		{name: "IPv4 first", family: corev1.IPv4Protocol, want: [2]string{"node-1 10.244.1.10", "node-2 10.244.2.11"}},
		{name: "IPv6 first", family: corev1.IPv6Protocol, want: [2]string{"node-1 fd00:1::a", "node-2 fd00:2::b"}},
		{name: "pods move only with their node's network", family: corev1.IPv4Protocol, apart: true, want: [2]string{"node-1 10.244.1.10", "node-2 10.244.2.11"}},
		{name: "host network", family: corev1.IPv4Protocol, hostNetwork: true, want: [2]string{"node-1 172.18.0.1", "node-2 172.18.0.2"}},
		{name: "host network apart", family: corev1.IPv4Protocol, hostNetwork: true, apart: true, want: [2]string{"node-2 172.18.0.2", "node-1 172.18.0.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			network := &fakeNetwork{}
			client, _ := newClient(t, Config{Network: network, Family: c.family, HostNetworkApart: c.apart})
			set, err := client.AppsV1().StatefulSets("house").Create(t.Context(), newSet(c.hostNetwork), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if set.Status.ReadyReplicas != 2 {
				t.Errorf("%d pods of the set are ready, want 2", set.Status.ReadyReplicas)
			}
			for i, name := range []string{"wizard-0", "wizard-1"} {
				pod, err := client.CoreV1().Pods("house").Get(t.Context(), name, metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := pod.Spec.NodeName + " " + pod.Status.PodIP; got != c.want[i] || pod.Labels["app"] != "wizard" {
					t.Errorf("%s is at %s with labels %v, want %s", name, got, pod.Labels, c.want[i])
				}
			}
			if len(network.objects.Pods) != 2 {
				t.Errorf("the network has %d pods, want 2", len(network.objects.Pods))
			}
			if err := client.AppsV1().StatefulSets("house").Delete(t.Context(), "wizard", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if len(network.objects.Pods) != 0 {
				t.Errorf("the set is deleted and the network has %d pods", len(network.objects.Pods))
			}
		})
	}
}

func TestChangesAreAppliedBeforeTheResponse(t *testing.T) {
	network := &fakeNetwork{}
	client, _ := newClient(t, Config{Network: network, Family: corev1.IPv4Protocol})
	policies := client.NetworkingV1().NetworkPolicies("house")
	policyTypes := func() []networkingv1.PolicyType {
		t.Helper()
		if len(network.objects.Policies) != 1 {
			t.Fatalf("the network has %d policies, want 1", len(network.objects.Policies))
		}
		return network.objects.Policies[0].(*networkingv1.NetworkPolicy).Spec.PolicyTypes
	}

	created := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	created.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress"}
	if _, err := policies.Create(t.Context(), created, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := policyTypes(); !slices.Equal(got, []networkingv1.PolicyType{"Ingress"}) {
		t.Errorf("created: the network's policy has the types %v", got)
	}
	if _, err := policies.Patch(t.Context(), "p", types.MergePatchType, []byte(`{"spec":{"policyTypes":["Egress"]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := policyTypes(); !slices.Equal(got, []networkingv1.PolicyType{"Egress"}) {
		t.Errorf("patched: the network's policy has the types %v", got)
	}
	created.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress", "Egress"}
	if _, err := policies.Update(t.Context(), created, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := policyTypes(); len(got) != 2 {
		t.Errorf("updated: the network's policy has the types %v", got)
	}
	if err := policies.Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(network.objects.Policies) != 0 {
		t.Error("deleted: the network still has the policy")
	}
	if _, err := policies.Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("deleted: get answers %v, want that it is not found", err)
	}

	network.refuse = errors.New("no")
	if _, err := policies.Create(t.Context(), created, metav1.CreateOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("the network refuses: create answers %v, want an internal error", err)
	}
}

func TestNamespaceNameLabel(t *testing.T) {
	network := &fakeNetwork{}
	client, _ := newClient(t, Config{Network: network, Family: corev1.IPv4Protocol})
	created := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "house", Labels: map[string]string{"a": "b"}}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), created, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := network.objects.Namespaces[0].Labels
	if got[corev1.LabelMetadataName] != "house" || got["a"] != "b" {
		t.Errorf("the namespace has the labels %v", got)
	}
	// A patch cannot take the label away, either.
	patch := []byte(`{"metadata":{"labels":{"kubernetes.io/metadata.name":null,"a":"c"}}}`)
	if _, err := client.CoreV1().Namespaces().Patch(t.Context(), "house", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := network.objects.Namespaces[0].Labels; got[corev1.LabelMetadataName] != "house" || got["a"] != "c" {
		t.Errorf("after a patch the namespace has the labels %v", got)
	}
}

func TestDiscovery(t *testing.T) {
	client, _ := newClient(t, Config{Network: &fakeNetwork{}, Family: corev1.IPv4Protocol})
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, list := range lists {
		for _, resource := range list.APIResources {
			got = append(got, list.GroupVersion+" "+resource.Kind)
		}
	}
	for _, want := range []string{"v1 Pod", "apps/v1 StatefulSet", "policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy", "policy.networking.k8s.io/v1beta1 ClusterNetworkPolicy"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %v", want, got)
		}
	}
}

func TestExecReportsResult(t *testing.T) {
	network := &fakeNetwork{}
	client, access := newClient(t, Config{Network: network, Family: corev1.IPv4Protocol})
	if _, err := client.AppsV1().StatefulSets("house").Create(t.Context(), newSet(false), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	connect := []string{"/agnhost", "connect", "--timeout=2s", "--protocol=udp", "10.0.0.1:53"}
	for _, c := range []struct {
		name      string
		container string
		command   []string
		outcome   netpol.Outcome
		err       error
		want      string // on stderr
		fails     bool
	}{
		{name: "connected", container: "wizard-client", command: connect, outcome: netpol.Connected},
		{name: "timed out", container: "wizard-client", command: connect, outcome: netpol.TimedOut, want: "TIMEOUT\n", fails: true},
		{name: "refused", container: "wizard-client", command: connect, outcome: netpol.Refused, want: "REFUSED\n", fails: true},
		{name: "not made", container: "wizard-client", command: connect, err: errors.New("no link"), want: "OTHER: no link\n", fails: true},
		{name: "nothing seen", container: "wizard-client", command: connect, want: "OTHER: not observed\n", fails: true},
		{name: "another container", container: "muggle", command: connect, outcome: netpol.Connected, fails: true},
		{name: "another command", container: "wizard-client", command: []string{"/bin/sh"}, outcome: netpol.Connected, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			network.outcome, network.err = c.outcome, c.err
			stdout, stderr, err := run(t, client, access, c.container, c.command)
			if stdout != "" || stderr != c.want || (err != nil) != c.fails {
				t.Errorf("stdout %q, stderr %q, error %v; want %q on stderr", stdout, stderr, err, c.want)
			}
		})
	}
	want := Attempt{From: "house/wizard-0", Protocol: corev1.ProtocolUDP, To: netip.MustParseAddrPort("10.0.0.1:53"), Timeout: 2 * time.Second}
	if network.attempt != want {
		t.Errorf("attempted %+v, want %+v", network.attempt, want)
	}
}

// run runs a command in the first pod.
func run(t *testing.T, client *kubernetes.Clientset, access *rest.Config, container string, command []string) (stdout, stderr string, err error) {
	t.Helper()
	request := client.CoreV1().RESTClient().Post().Namespace("house").Resource("pods").Name("wizard-0").SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewSPDYExecutor(access, "POST", request.URL())
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	err = executor.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
	return out.String(), errOut.String(), err
}

func TestServing(t *testing.T) {
	for _, c := range []struct {
		container corev1.Container
		want      string
	}{
		{corev1.Container{Command: []string{"/bin/bash", "-c", "/agnhost serve-hostname --tcp --http=false --port 80"}}, "TCP 80"},
		{corev1.Container{Command: []string{"/bin/bash", "-c", "/agnhost serve-hostname --udp --http=false --port 53"}}, "UDP 53"},
		{corev1.Container{Command: []string{"/bin/bash", "-c", "/agnhost netexec --http-port 34348 --udp-port 34347 --udp-listen-addresses $(HOST_IP)"}}, "UDP 34347"},
		{corev1.Container{Command: []string{"/bin/bash", "-c", "/agnhost porter"}, Env: []corev1.EnvVar{{Name: "SERVE_SCTP_PORT_9003"}}}, "SCTP 9003"},
		{corev1.Container{Ports: []corev1.ContainerPort{{ContainerPort: 80}}}, ""}, // declared, but not served
	} {
		t.Run(c.want, func(t *testing.T) {
			got := Serving(&corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{c.container}}})
			var text string
			for _, port := range got {
				text += fmt.Sprintf("%s %d", port.Protocol, port.ContainerPort)
			}
			if text != c.want {
				t.Errorf("%v serves %q, want %q", c.container.Command, text, c.want)
			}
		})
	}
}

func TestParseConnect(t *testing.T) {
	for _, c := range []struct {
		command string
		want    Attempt
		wrong   bool
	}{
		{command: "/agnhost connect --timeout=3s --protocol=tcp 10.0.0.1:80", want: Attempt{Protocol: "TCP", To: netip.MustParseAddrPort("10.0.0.1:80"), Timeout: 3 * time.Second}},
		{command: "/agnhost connect --protocol=sctp [fd00::1]:9003", want: Attempt{Protocol: "SCTP", To: netip.MustParseAddrPort("[fd00::1]:9003"), Timeout: defaultTimeout}},
		{command: "/agnhost connect", wrong: true},
		{command: "/agnhost netexec 10.0.0.1:80", wrong: true},
		{command: "/agnhost connect --timeout=soon 10.0.0.1:80", wrong: true},
		{command: "/agnhost connect --wait=3s 10.0.0.1:80", wrong: true},
		{command: "/agnhost connect server:80", wrong: true},
	} {
		t.Run(c.command, func(t *testing.T) {
			got, err := parseConnect(strings.Fields(c.command))
			if (err != nil) != c.wrong || !c.wrong && got != c.want {
				t.Errorf("%q is %+v, %v; want %+v", c.command, got, err, c.want)
			}
		})
	}
}
