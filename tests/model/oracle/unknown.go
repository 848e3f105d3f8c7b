package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// EvaluateOneOf decides about a packet of an address that one of several pods has; nil stands for
// no pod. If the pods give different decisions, the packet waits.
//
// NP-55, NP-61 and CN-35: the rule for everything unknown about an address.
func EvaluateOneOf(c Cluster, node string, q Query, addr netip.Addr, pods []*corev1.Pod) (allowed, waits bool) {
	for i, pod := range pods {
		now := Evaluate(c.With(pod, addr), node, q).Allowed()
		if i > 0 && now != allowed {
			return false, true
		}
		allowed = now
	}
	return allowed, false
}

// With returns c with only this pod at an address; nil stands for no pod.
func (c Cluster) With(pod *corev1.Pod, addr netip.Addr) Cluster {
	c.Pods = slices.DeleteFunc(slices.Clone(c.Pods), func(p *corev1.Pod) bool {
		return shows(p, addr) || pod != nil && p.Namespace == pod.Namespace && p.Name == pod.Name
	})
	if pod != nil {
		pod = pod.DeepCopy()
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: addr.String()}}}
		c.Pods = append(c.Pods, pod)
	}
	return c
}
