package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// rollOut creates the pods of a StatefulSet, running, and returns the set with
// that in its status. Its pods alternate over the nodes.
func (s *Server) rollOut(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	set := &appsv1.StatefulSet{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, set); err != nil {
		return nil, err
	}
	replicas := 1
	if set.Spec.Replicas != nil {
		replicas = int(*set.Spec.Replicas)
	}
	for ordinal := range replicas {
		if err := s.add(ctx, pods, s.newPod(set, ordinal)); err != nil {
			return nil, err
		}
		if err := s.apply(ctx); err != nil {
			return nil, err
		}
	}
	for _, field := range []string{"replicas", "readyReplicas"} {
		if err := unstructured.SetNestedField(object.Object, int64(replicas), "status", field); err != nil {
			return nil, err
		}
	}
	return s.of(statefulSets, set.Namespace).Update(ctx, object, metav1.UpdateOptions{})
}

func (s *Server) newPod(set *appsv1.StatefulSet, ordinal int) *corev1.Pod {
	node := s.place(set, ordinal)
	pod := &corev1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *set.Spec.Template.Spec.DeepCopy()}
	pod.Namespace, pod.Name = set.Namespace, fmt.Sprintf("%s-%d", set.Name, ordinal)
	if pod.Labels == nil {
		pod.Labels = make(map[string]string)
	}
	pod.Labels[appsv1.StatefulSetPodNameLabel] = pod.Name
	pod.Labels[appsv1.PodIndexLabel] = strconv.Itoa(ordinal)
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: statefulSets.name, Name: set.Name}}
	pod.Spec.NodeName = node.Name
	pod.Status.Phase = corev1.PodRunning
	addrs := s.order(NodeAddrs(node))
	pod.Status.HostIP = addrs[0].String()
	if !pod.Spec.HostNetwork {
		addrs = s.order(s.newAddrs(node))
	}
	for _, addr := range addrs {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: addr.String()})
	}
	pod.Status.PodIP = pod.Status.PodIPs[0].IP
	return pod
}

// place returns the node of a pod.
func (s *Server) place(set *appsv1.StatefulSet, ordinal int) *corev1.Node {
	if set.Spec.Template.Spec.HostNetwork && s.cfg.HostNetworkApart {
		ordinal++
	}
	all := s.cfg.Network.Nodes()
	return all[ordinal%len(all)]
}

// removePods deletes the pods of a StatefulSet.
func (s *Server) removePods(ctx context.Context, namespace, set string) error {
	list, err := s.of(pods, namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pod := range list.Items {
		ours := func(o metav1.OwnerReference) bool { return o.Kind == statefulSets.name && o.Name == set }
		if !slices.ContainsFunc(pod.GetOwnerReferences(), ours) {
			continue
		}
		if err := s.of(pods, namespace).Delete(ctx, pod.GetName(), metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := s.apply(ctx); err != nil {
			return err
		}
	}
	return nil
}

// firstAddr is what is left of a node's range for the node itself.
const firstAddr = 10

// newAddrs returns the addresses of one more pod, one out of each range.
func (s *Server) newAddrs(node *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, cidr := range node.Spec.PodCIDRs {
		bytes := netip.MustParsePrefix(cidr).Addr().AsSlice()
		bytes[len(bytes)-1] = byte(firstAddr + s.pods)
		addr, _ := netip.AddrFromSlice(bytes)
		addrs = append(addrs, addr)
	}
	s.pods++
	return addrs
}

// order puts the addresses of the server's family first.
func (s *Server) order(addrs []netip.Addr) []netip.Addr {
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int {
		if a.Is4() == b.Is4() {
			return 0
		}
		if a.Is4() == (s.cfg.Family == corev1.IPv4Protocol) {
			return -1
		}
		return 1
	})
	return addrs
}

// NodeAddrs returns the addresses of a node.
func NodeAddrs(node *corev1.Node) []netip.Addr {
	var addrs []netip.Addr
	for _, a := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// servers are the ways in which the agnhost image is configured to serve a port: by its
// arguments or, for SCTP, by the name of an environment variable.
var servers = map[corev1.Protocol]*regexp.Regexp{
	corev1.ProtocolTCP:  regexp.MustCompile(`serve-hostname --tcp .*--port (\d+)`),
	corev1.ProtocolUDP:  regexp.MustCompile(`serve-hostname --udp .*--port (\d+)|netexec .*--udp-port (\d+)`),
	corev1.ProtocolSCTP: regexp.MustCompile(`SERVE_SCTP_PORT_(\d+)`),
}

// Serving returns the ports that the containers of a pod answer on, declared or
// not.
func Serving(pod *corev1.Pod) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	for _, container := range pod.Spec.Containers {
		text := strings.Join(slices.Concat(container.Command, container.Args), " ")
		for _, variable := range container.Env {
			text += " " + variable.Name
		}
		for protocol, server := range servers {
			if found := server.FindStringSubmatch(text); found != nil {
				port, _ := strconv.Atoi(strings.Join(found[1:], "")) // one of the groups is empty
				ports = append(ports, corev1.ContainerPort{Protocol: protocol, ContainerPort: int32(port)})
			}
		}
	}
	return ports
}
