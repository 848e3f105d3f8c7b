package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// serviceKinds are the Services for each way to a pod. Their names begin with that of the pod.
var serviceKinds = map[netpol.Via]struct {
	suffix string
	spec   corev1.ServiceSpec
}{
	netpol.Service:  {"", corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}},
	netpol.NodePort: {"-node-port", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal}},
	netpol.LoadBalancer: {"-load-balancer", corev1.ServiceSpec{
		Type:                  corev1.ServiceTypeLoadBalancer,
		ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyCluster,
		LoadBalancerClass:     new("netpol-suite/none"), // of no controller: the suite gives it its addresses
	}},
}

// applyServices makes the Services of each pod that the ways of state need, and stores where they
// lead to the pod.
func (b *Backend) applyServices(ctx context.Context, state *netpol.State) error {
	vias := slices.DeleteFunc(slices.Clone(state.Vias), func(v netpol.Via) bool { return v == netpol.Direct })
	if b.cfg.ViaServices && !slices.Contains(vias, netpol.Service) {
		vias = append(vias, netpol.Service)
	}
	for _, pod := range state.Pods {
		if !netpol.IsUp(pod) {
			continue
		}
		for _, via := range vias {
			if pod.Spec.HostNetwork { // has no Service
				b.noteStatus(pod, via)
				continue
			}
			if err := b.applyService(ctx, state, pod, via); err != nil {
				return fmt.Errorf("service of pod %s: %w", netpol.PodName(pod), err)
			}
		}
	}
	return nil
}

// applyService makes one Service of a pod.
func (b *Backend) applyService(ctx context.Context, state *netpol.State, pod *corev1.Pod, via netpol.Via) error {
	wanted := b.serviceObject(state, pod, via)
	client := b.client.CoreV1().Services(pod.Namespace)
	service, err := client.Get(ctx, wanted.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		service, err = client.Create(ctx, wanted, metav1.CreateOptions{})
	case err == nil && !slices.EqualFunc(service.Spec.Ports, wanted.Spec.Ports, sameServicePort):
		service.Spec.Ports = wanted.Spec.Ports
		service, err = client.Update(ctx, service, metav1.UpdateOptions{})
	}
	if err == nil && via == netpol.LoadBalancer && len(service.Status.LoadBalancer.Ingress) == 0 {
		service, err = b.giveAddresses(ctx, service)
	}
	if err != nil {
		return err
	}
	b.noteService(b.name.scenarioName(pod), via, pod.Spec.NodeName, service)
	return nil
}

func sameServicePort(a, b corev1.ServicePort) bool {
	return a.Name == b.Name && a.Port == b.Port && a.Protocol == b.Protocol
}

func (b *Backend) serviceObject(state *netpol.State, pod *corev1.Pod, via netpol.Via) *corev1.Service {
	kind := serviceKinds[via]
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name + kind.suffix, Labels: map[string]string{ownerLabel: ownerValue}},
		Spec:       *kind.spec.DeepCopy(),
	}
	service.Spec.Selector = map[string]string{podLabel: pod.Name}
	service.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyPreferDualStack)
	for _, port := range state.Ports {
		for _, protocol := range b.served {
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
				Name: fmt.Sprintf("%s-%d", strings.ToLower(string(protocol)), port), Port: port, Protocol: protocol,
			})
		}
	}
	return service
}

// Addresses of load balancers: those of RFC 5737 and RFC 3849 that scenarios do not use.
var (
	balancers4 = netip.MustParseAddr("192.0.2.0")
	balancers6 = netip.MustParseAddr("2001:db8:2::")
)

// mostBalancers is how many load balancers have addresses of their own at the same time.
const mostBalancers = 254

// giveAddresses gives a load balancer the next address of each family that no other has, such as one of
// another suite.
func (b *Backend) giveAddresses(ctx context.Context, service *corev1.Service) (*corev1.Service, error) {
	list, err := b.client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: ownerLabel + "=" + ownerValue})
	if err != nil {
		return nil, fmt.Errorf("list load balancers: %w", err)
	}
	for range mostBalancers {
		ingress := balancerAddresses(service.Spec.IPFamilies, b.balancers%mostBalancers+1)
		b.balancers++
		if !slices.ContainsFunc(list.Items, func(other corev1.Service) bool {
			return slices.ContainsFunc(other.Status.LoadBalancer.Ingress, func(taken corev1.LoadBalancerIngress) bool {
				return slices.ContainsFunc(ingress, func(i corev1.LoadBalancerIngress) bool { return i.IP == taken.IP })
			})
		}) {
			service.Status.LoadBalancer.Ingress = ingress
			return b.client.CoreV1().Services(service.Namespace).UpdateStatus(ctx, service, metav1.UpdateOptions{})
		}
	}
	return nil, errors.New("other load balancers have all addresses")
}

// balancerAddresses returns address n of each family.
func balancerAddresses(families []corev1.IPFamily, n int) []corev1.LoadBalancerIngress {
	var ingress []corev1.LoadBalancerIngress
	for _, family := range families {
		network := balancers4
		if family == corev1.IPv6Protocol {
			network = balancers6
		}
		bytes := network.AsSlice()
		bytes[len(bytes)-1] = byte(n)
		addr, _ := netip.AddrFromSlice(bytes)
		ingress = append(ingress, corev1.LoadBalancerIngress{IP: addr.String()})
	}
	return ingress
}

// noteService stores where a Service leads to its pod, which is on a node of the state.
func (b *Backend) noteService(pod string, via netpol.Via, node string, service *corev1.Service) {
	switch via {
	case netpol.NodePort:
		b.note(pod, via, b.nodeAddresses[b.nodes[nodeIndex(node)]]...)
		b.notePorts(pod, service.Spec.Ports)
	case netpol.LoadBalancer:
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			b.note(pod, via, ingress.IP)
		}
	default:
		b.note(pod, via, service.Spec.ClusterIPs...)
	}
}

// notePorts stores the ports of nodes that lead to a pod.
func (b *Backend) notePorts(pod string, ports []corev1.ServicePort) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, port := range ports {
		b.nodePorts[servedPort{pod, port.Protocol, port.Port}] = port.NodePort
	}
}
