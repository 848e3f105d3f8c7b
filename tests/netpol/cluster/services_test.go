package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// targets returns where connections to a pod go, by each of the ways.
func targets(b *Backend, pod string, traffic netpol.Traffic) []string {
	var targets []string
	for via := range netpol.LoadBalancer + 1 {
		traffic.Via = via
		targets = append(targets, b.target(netpol.Connection{To: pod, Traffic: traffic.Over(corev1.IPv4Protocol)}))
	}
	return targets
}

// Each way has a Service of its own, and x/b is on the second node.
func TestWaysToAPod(t *testing.T) {
	w := newWorld(t)
	b := w.backend(t, Config{SCTP: true})
	model := netpol.Model{Namespaces: []string{"x"}, Pods: []string{"a", "b"}, HostNetwork: true,
		Vias: []netpol.Via{netpol.Direct, netpol.Service, netpol.NodePort, netpol.LoadBalancer}}
	state := model.State()
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	services := make(map[string]corev1.Service)
	list, _ := w.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	for _, s := range list.Items {
		services[s.Namespace+"/"+s.Name] = s
	}
	if len(services) != 6 {
		t.Fatalf("%d services, want three for each pod that is not in the network of its node: %v", len(services), services)
	}
	nodePort, balancer := services["t-x/b-node-port"], services["t-x/b-load-balancer"]
	if nodePort.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal || balancer.Spec.LoadBalancerClass == nil {
		t.Errorf("the NodePort is %+v, the load balancer %+v", nodePort.Spec, balancer.Spec)
	}
	port := func(name string) string {
		i := slices.IndexFunc(nodePort.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == name })
		return fmt.Sprint(nodePort.Spec.Ports[i].NodePort)
	}

	want := []string{
		"udp://" + state.Addr("x/b", corev1.IPv4Protocol).String() + ":81",
		"udp://" + services["t-x/b"].Spec.ClusterIPs[0] + ":81",
		"udp://192.168.0.2:" + port("udp-81"),
		"udp://" + balancer.Status.LoadBalancer.Ingress[0].IP + ":81",
	}
	if got := targets(b, "x/b", netpol.UDP(81)); !slices.Equal(got, want) {
		t.Errorf("connections to x/b go to %q, want %q", got, want)
	}
	if got := targets(b, "x/b", netpol.SCTP(80))[2]; got != "sctp://192.168.0.2:"+port("sctp-80") {
		t.Errorf("SCTP goes to %s", got)
	}
	if a := targets(b, "x/a", netpol.UDP(81))[3]; a == want[3] || !strings.HasPrefix(a, "udp://192.0.2.") {
		t.Errorf("the load balancer of x/a is at %s, that of x/b at %s", a, want[3])
	}
	host := targets(b, "host/node-1", netpol.TCP(80))
	if slices.Contains(host, "") || len(slices.Compact(host)) != 1 {
		t.Errorf("connections to a pod in the network of its node go to %q", host)
	}

	// The next scenario has other ports, and its Services the same addresses.
	model.Ports = []int32{81, 90}
	if err := b.Apply(t.Context(), model.State()); err != nil {
		t.Fatal(err)
	}
	now := targets(b, "x/b", netpol.UDP(90))
	if now[1] != strings.Replace(want[1], ":81", ":90", 1) || now[3] != strings.Replace(want[3], ":81", ":90", 1) {
		t.Errorf("with other ports, connections to x/b go to %q", now)
	}
	service, err := w.CoreV1().Services("t-x").Get(context.Background(), "b", metav1.GetOptions{})
	if err != nil || len(service.Spec.Ports) != 6 || service.Spec.Ports[5].Port != 90 {
		t.Errorf("%v; the ports are %v", err, service.Spec.Ports)
	}
}
