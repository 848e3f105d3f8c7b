package compile

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// Ended tells that the pod runs no more: it has no network, whatever addresses
// its status still has (NP-50).
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Addresses returns every address that the pod's status has, as the snapshot
// reads them. Whether the pod is who owns them, the snapshot tells.
func Addresses(pod *corev1.Pod) []netip.Addr { return slices.Collect(podAddrs(pod)) }

// NamedPorts returns the ports that the pod declares with a name, as the
// snapshot reads them.
func NamedPorts(pod *corev1.Pod) []policy.NamedPort { return namedPorts(pod) }
