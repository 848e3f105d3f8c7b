package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// noScheduler is of pods that are only objects: no scheduler and no kubelet looks at them.
const noScheduler = "netpol-suite"

// onlyObject keeps a pod from running.
func onlyObject(spec *corev1.PodSpec) { spec.NodeName, spec.SchedulerName = "", noScheduler }

// noteMoves adds the addresses that a pod has in the cluster, by those that its state had before.
func noteMoves(moved map[string]string, before, now []corev1.PodIP) {
	for _, old := range before {
		for _, ip := range now {
			if isIPv4(old.IP) == isIPv4(ip.IP) {
				moved[old.IP] = ip.IP
			}
		}
	}
}

func isIPv4(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	return err == nil && addr.Is4()
}

// writeStatuses gives the pods that do not run their status. Addresses that they share with a pod
// that runs are that pod's, which the cluster chose.
func (b *Backend) writeStatuses(ctx context.Context, state *netpol.State, moved map[string]string) error {
	for i, pod := range state.Pods {
		if netpol.IsUp(pod) {
			continue
		}
		pod = pod.DeepCopy()
		for j, ip := range pod.Status.PodIPs {
			if now, ok := moved[ip.IP]; ok {
				pod.Status.PodIPs[j].IP = now
			}
		}
		if len(pod.Status.PodIPs) > 0 {
			pod.Status.PodIP = pod.Status.PodIPs[0].IP
		}
		if err := b.writeStatus(ctx, pod); err != nil {
			return fmt.Errorf("status of pod %s: %w", netpol.PodName(pod), err)
		}
		state.Pods[i] = pod
	}
	return nil
}

// writeStatus writes the phase and the addresses of a pod.
func (b *Backend) writeStatus(ctx context.Context, pod *corev1.Pod) error {
	client := b.client.CoreV1().Pods(pod.Namespace)
	current, err := client.Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if current.Status.Phase == pod.Status.Phase && slices.Equal(current.Status.PodIPs, pod.Status.PodIPs) {
		return nil
	}
	current.Status = corev1.PodStatus{Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs}
	_, err = client.UpdateStatus(ctx, current, metav1.UpdateOptions{})
	return err
}
