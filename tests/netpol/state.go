package netpol

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// State is a cluster: the API objects, the ports that pods serve, and hosts outside.
// Objects in a state never change; methods replace them, so a Backend may keep and compare
// them.
//
// The methods that change a state are for the steps of a scenario. They panic for a name
// that does not exist, because a scenario with such an error must not pass.
type State struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Policies   []*networkingv1.NetworkPolicy

	AdminNetworkPolicies         []*v1alpha1.AdminNetworkPolicy
	BaselineAdminNetworkPolicies []*v1alpha1.BaselineAdminNetworkPolicy
	ClusterNetworkPolicies       []*v1beta1.ClusterNetworkPolicy
	// Proposed are ClusterNetworkPolicies with fields of proposals, which the Go types of the API
	// lack, and CIDRGroups, which these refer to. Scenarios that have them need the feature of the
	// proposal.
	Proposed []*unstructured.Unstructured

	// Hosts are hosts outside the cluster.
	Hosts []Host
	// Ports are what pods and hosts serve, with every protocol.
	Ports []int32
	// Vias are the ways to each pod, which has a Service for them. Host-network pods have none.
	Vias []Via
}

// Host is a host outside the cluster.
type Host struct {
	Name  string // "group/name", in the form of pods' names
	Node  string // through which its packets enter the cluster
	Addrs []netip.Addr
}

// Clone returns a copy. Changes of the copy do not change s.
func (s *State) Clone() *State {
	c := *s
	c.Namespaces = slices.Clone(s.Namespaces)
	c.Pods = slices.Clone(s.Pods)
	c.Policies = slices.Clone(s.Policies)
	c.AdminNetworkPolicies = slices.Clone(s.AdminNetworkPolicies)
	c.BaselineAdminNetworkPolicies = slices.Clone(s.BaselineAdminNetworkPolicies)
	c.ClusterNetworkPolicies = slices.Clone(s.ClusterNetworkPolicies)
	c.Proposed = slices.Clone(s.Proposed)
	c.Hosts = slices.Clone(s.Hosts)
	return &c
}

// Endpoints returns the names of the rows of a table of this state: the running pods and
// the hosts.
func (s *State) Endpoints() []string {
	var names []string
	for _, pod := range s.Pods {
		if IsUp(pod) {
			names = append(names, PodName(pod))
		}
	}
	for _, host := range s.Hosts {
		names = append(names, host.Name)
	}
	return names
}

// IsUp reports whether a pod should answer. A terminated pod does not, even if its status
// still has addresses.
func IsUp(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

// PodName returns "namespace/name".
func PodName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// Pod returns the pod called "namespace/name".
func (s *State) Pod(name string) *corev1.Pod { return s.Pods[s.podIndex(name)] }

func (s *State) podIndex(name string) int {
	i := slices.IndexFunc(s.Pods, func(p *corev1.Pod) bool { return PodName(p) == name })
	if i < 0 {
		panic("netpol: no pod " + name)
	}
	return i
}

// Addr returns the first address of a pod or host in a family, or the zero Addr.
func (s *State) Addr(name string, family corev1.IPFamily) netip.Addr {
	for _, addr := range s.addrs(name) {
		if addr.Is4() == (family == corev1.IPv4Protocol) {
			return addr
		}
	}
	return netip.Addr{}
}

func (s *State) addrs(name string) []netip.Addr {
	for _, host := range s.Hosts {
		if host.Name == name {
			return host.Addrs
		}
	}
	var addrs []netip.Addr
	for _, ip := range s.Pod(name).Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// CIDR returns the address of a pod or host in a family as a /32 or /128. It panics if
// there is none.
func (s *State) CIDR(name string, family corev1.IPFamily) string {
	addr := s.Addr(name, family)
	if !addr.IsValid() {
		panic(fmt.Sprintf("netpol: %s has no %s address", name, family))
	}
	return netip.PrefixFrom(addr, addr.BitLen()).String()
}

// CIDRs returns the addresses of a pod or host as /32 and /128.
func (s *State) CIDRs(name string) []string {
	var cidrs []string
	for _, addr := range s.addrs(name) {
		cidrs = append(cidrs, netip.PrefixFrom(addr, addr.BitLen()).String())
	}
	return cidrs
}

// ChangePod replaces the pod called "namespace/name" by a copy, which change modifies.
func (s *State) ChangePod(name string, change func(*corev1.Pod)) {
	i := s.podIndex(name)
	s.Pods[i] = s.Pods[i].DeepCopy()
	change(s.Pods[i])
}

// LabelPod changes labels of the pod called "namespace/name": "key=value" sets one, "key-"
// removes it.
func (s *State) LabelPod(name string, changes ...string) {
	s.ChangePod(name, func(pod *corev1.Pod) { label(&pod.ObjectMeta, changes) })
}

// LabelNamespace changes labels of a namespace, like LabelPod.
func (s *State) LabelNamespace(name string, changes ...string) {
	i := s.namespaceIndex(name)
	s.Namespaces[i] = s.Namespaces[i].DeepCopy()
	label(&s.Namespaces[i].ObjectMeta, changes)
}

func label(meta *metav1.ObjectMeta, changes []string) {
	if meta.Labels == nil {
		meta.Labels = make(map[string]string)
	}
	for _, change := range changes {
		if key, removed := strings.CutSuffix(change, "-"); removed && !strings.Contains(change, "=") {
			delete(meta.Labels, key)
			continue
		}
		key, value, ok := strings.Cut(change, "=")
		if !ok {
			panic(fmt.Sprintf("netpol: %q is neither key=value nor key-", change))
		}
		meta.Labels[key] = value
	}
}

// AddPod adds a pod. Apply gives it addresses if it has none.
func (s *State) AddPod(pod *corev1.Pod) {
	name := PodName(pod)
	if slices.ContainsFunc(s.Pods, func(p *corev1.Pod) bool { return PodName(p) == name }) {
		panic("netpol: pod " + name + " exists")
	}
	s.Pods = append(s.Pods, pod)
}

// DeletePod deletes the pod called "namespace/name".
func (s *State) DeletePod(name string) {
	i := s.podIndex(name)
	s.Pods = slices.Delete(s.Pods, i, i+1)
}

// RecreatePod replaces the pod called "namespace/name" by a new one without addresses.
func (s *State) RecreatePod(name string) {
	s.ChangePod(name, func(pod *corev1.Pod) {
		pod.UID = ""
		pod.Status = corev1.PodStatus{}
	})
}

// Namespace returns a namespace.
func (s *State) Namespace(name string) *corev1.Namespace {
	return s.Namespaces[s.namespaceIndex(name)]
}

func (s *State) namespaceIndex(name string) int {
	i := slices.IndexFunc(s.Namespaces, func(n *corev1.Namespace) bool { return n.Name == name })
	if i < 0 {
		panic("netpol: no namespace " + name)
	}
	return i
}

// AddNamespace adds a namespace.
func (s *State) AddNamespace(namespace *corev1.Namespace) {
	s.Namespaces = append(s.Namespaces, namespace)
}

// DeleteNamespace deletes a namespace with its pods and policies.
func (s *State) DeleteNamespace(name string) {
	i := s.namespaceIndex(name)
	s.Namespaces = slices.Delete(s.Namespaces, i, i+1)
	s.Pods = slices.DeleteFunc(s.Pods, func(p *corev1.Pod) bool { return p.Namespace == name })
	s.Policies = slices.DeleteFunc(s.Policies, func(p *networkingv1.NetworkPolicy) bool { return p.Namespace == name })
}
