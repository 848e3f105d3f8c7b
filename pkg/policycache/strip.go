package policycache

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The strip functions return a new object with what policy needs of theirs and
// leave the one they are given alone. What two objects have in common is shared
// between them, so nothing in a stripped object may be written to. Stripping
// twice changes nothing.

// stripNamespace keeps the labels.
func stripNamespace(labels *labelPool) func(*corev1.Namespace) *corev1.Namespace {
	return func(ns *corev1.Namespace) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name:            ns.Name,
			UID:             ns.UID,
			ResourceVersion: ns.ResourceVersion,
			Labels:          shareLabels(labels, ns.Labels),
		}}
	}
}

// stripNode keeps the ranges of pod addresses.
func stripNode(n *corev1.Node) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
	}
}

// stripNetworkPolicy keeps the whole spec, and the generation and labels that
// tell a reader of findings which one it was.
func stripNetworkPolicy(p *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Name:            p.Name,
			Namespace:       p.Namespace,
			UID:             p.UID,
			ResourceVersion: p.ResourceVersion,
			Generation:      p.Generation,
			Labels:          p.Labels,
		},
		Spec: p.Spec,
	}
}

// stripPod keeps what tells a pod's identity, its addresses, whose of two pods
// an address is, and the ports that have names.
func stripPod(labels *labelPool, ports *portPool) func(*corev1.Pod) *corev1.Pod {
	share := func(all []corev1.Container, keep func(*corev1.Container) bool) []corev1.Container {
		kept := withPorts(all, keep)
		return ports.share(hashPorts(kept), kept)
	}
	return func(p *corev1.Pod) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name:              p.Name,
				Namespace:         p.Namespace,
				UID:               p.UID,
				ResourceVersion:   p.ResourceVersion,
				Labels:            shareLabels(labels, p.Labels),
				CreationTimestamp: p.CreationTimestamp,
				DeletionTimestamp: p.DeletionTimestamp,
			},
			Spec: corev1.PodSpec{
				NodeName:       p.Spec.NodeName,
				HostNetwork:    p.Spec.HostNetwork,
				Containers:     share(p.Spec.Containers, func(*corev1.Container) bool { return true }),
				InitContainers: share(p.Spec.InitContainers, restartable),
			},
			Status: corev1.PodStatus{Phase: p.Status.Phase, PodIPs: podIPs(&p.Status)},
		}
	}
}

// podIPs returns all addresses of a pod. Servers without dual-stack set podIP
// alone.
func podIPs(s *corev1.PodStatus) []corev1.PodIP {
	switch {
	case len(s.PodIPs) > 0:
		return s.PodIPs
	case s.PodIP != "":
		return []corev1.PodIP{{IP: s.PodIP}}
	default:
		return nil
	}
}

// restartable reports whether an init container runs beside the others.
func restartable(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

var always = corev1.ContainerRestartPolicyAlways

// withPorts returns the containers to be kept that have ports, with nothing
// but these.
func withPorts(all []corev1.Container, keep func(*corev1.Container) bool) []corev1.Container {
	var kept []corev1.Container
	for i := range all {
		c := &all[i]
		if len(c.Ports) == 0 || !keep(c) {
			continue
		}
		stripped := corev1.Container{Ports: make([]corev1.ContainerPort, len(c.Ports))}
		if restartable(c) {
			stripped.RestartPolicy = &always
		}
		for j, p := range c.Ports {
			stripped.Ports[j] = corev1.ContainerPort{Name: p.Name, Protocol: p.Protocol, ContainerPort: p.ContainerPort}
		}
		kept = append(kept, stripped)
	}
	return slices.Clip(kept)
}

// shareLabels knows one way only to have no labels.
func shareLabels(pool *labelPool, labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	return pool.share(hashLabels(labels), labels)
}

func equalLabels(a, b map[string]string) bool { return maps.Equal(a, b) }

func equalPorts(a, b []corev1.Container) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Container) bool {
		return restartable(&x) == restartable(&y) && slices.Equal(x.Ports, y.Ports)
	})
}
