package suggest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// cluster finds the ends of flows. It contains a pod for each recorded one, even if the pod
// is gone, as long as its workload is known.
type cluster struct {
	input   *Input
	objects clusterstate.Input // those of input, with the recorded pods
	*reachability.Cluster
	pods       map[string]*corev1.Pod // by "namespace/name"
	byWorkload map[workloads.Ref][]*corev1.Pod
	namespaces map[string]*corev1.Namespace
	selections map[workloads.Ref]*selection
}

// end is the source or destination of a flow.
type end struct {
	title    string // for comments
	endpoint reachability.Endpoint

	workload  workloads.Ref // of a pod
	selection *selection
	prefix    netip.Prefix // of an address: the address itself, or a named block

	peer networkingv1.NetworkPolicyPeer // in rules for it
}

func newCluster(in *Input, recorded []*flow) *cluster {
	c := &cluster{input: in, objects: in.Cluster, namespaces: map[string]*corev1.Namespace{}, selections: map[workloads.Ref]*selection{}}
	for _, ns := range in.Cluster.Namespaces {
		c.namespaces[ns.Name] = ns
	}
	c.index()
	var recreated []*corev1.Pod
	for _, f := range recorded {
		for _, n := range []name{f.source, f.destination} {
			if pod := c.recreate(n); pod != nil {
				recreated = append(recreated, pod)
				c.pods[n.String()] = pod
			}
		}
	}
	c.objects.Pods = slices.DeleteFunc(slices.Clone(c.objects.Pods), func(p *corev1.Pod) bool {
		return c.pods[p.Namespace+"/"+p.Name] != p // replaced by the recreated pod
	})
	c.objects.Pods = append(c.objects.Pods, recreated...)
	c.objects, _ = reachability.WithAddresses(c.objects, c.objects)
	c.index()
	c.Cluster = reachability.New(c.objects, c.input.PodRanges...)
	return c
}

func (c *cluster) index() {
	c.pods, c.byWorkload = map[string]*corev1.Pod{}, map[workloads.Ref][]*corev1.Pod{}
	for _, pod := range c.objects.Pods {
		c.pods[pod.Namespace+"/"+pod.Name] = pod
		w := workloads.Of(pod)
		c.byWorkload[w] = append(c.byWorkload[w], pod)
	}
}

// recreate returns a running pod that takes the place of a recorded one that has ended or
// is gone. The copy is made from the pod itself or from a pod of its workload. It returns
// nil if the pod is running or its workload is not known.
func (c *cluster) recreate(n name) *corev1.Pod {
	if n.pod == "" {
		return nil
	}
	template := c.pods[n.String()]
	switch {
	case template == nil:
		owners := c.ownersOf(n)
		if len(owners) != 1 {
			return nil
		}
		pods := c.byWorkload[owners[0]]
		template = pods[max(0, slices.IndexFunc(pods, selectable))]
	case !compile.Ended(template):
		return nil
	}
	pod := template.DeepCopy()
	pod.Name, pod.DeletionTimestamp = n.pod, nil
	pod.UID = types.UID("recorded/" + n.String())
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	return pod
}

// ownersOf returns the workloads that may have made a missing pod.
func (c *cluster) ownersOf(n name) []workloads.Ref {
	var found []workloads.Ref
	for ref := range c.byWorkload {
		if ref.Namespace == n.namespace && ref.MayHaveMade(n.pod) {
			found = append(found, ref)
		}
	}
	slices.SortFunc(found, workloads.Ref.Compare)
	return found
}

// selectable reports whether policies can select a pod.
func selectable(pod *corev1.Pod) bool { return !pod.Spec.HostNetwork && !compile.Ended(pod) }

// end returns the end with that name.
func (c *cluster) end(n name, names []string) (*end, error) {
	if n.pod == "" {
		return c.address(n.addr, names)
	}
	pod := c.pods[n.String()]
	if pod == nil {
		return nil, c.missingPod(n)
	}
	if pod.Spec.HostNetwork {
		return nil, fmt.Errorf("pod %v uses the network of its node today", n)
	}
	endpoint, err := c.Endpoint(n.String())
	if err != nil {
		return nil, err
	}
	ref := workloads.Of(pod)
	sel, err := c.selection(ref)
	if err != nil {
		return nil, err
	}
	peer, err := c.peer(sel)
	return &end{title: c.titleOf(ref), endpoint: endpoint, workload: ref, selection: sel, peer: peer}, err
}

// missingPod explains why a pod that does not exist cannot be the end of a flow.
func (c *cluster) missingPod(n name) error {
	var titles []string
	for _, ref := range c.ownersOf(n) {
		titles = append(titles, c.titleOf(ref))
	}
	if len(titles) == 0 {
		return errors.New("a pod is gone, and its name is not one that a workload of today gives to its pods")
	}
	return fmt.Errorf("a pod is gone, and may have been one of %s", strings.Join(titles, " or of "))
}

// titled returns a flow that cannot be resolved, with the workloads of its ends as far as they are
// known: pods that are gone by what their names have in common.
func (c *cluster) titled(f *flow) string {
	title := func(n name) string {
		pod := c.pods[n.String()]
		switch {
		case n.pod == "":
			return n.addr.String()
		case pod != nil:
			return c.titleOf(workloads.Of(pod))
		}
		return printable.Text(c.titleOf(workloads.Ref{Kind: workloads.Pod, Namespace: n.namespace, Name: workloads.CommonName(n.pod)}))
	}
	port := printable.Text(f.protocol)
	if f.port != 0 {
		port += fmt.Sprint(" ", f.port)
	}
	return fmt.Sprintf("%s -> %s, %s", title(f.source), title(f.destination), port)
}

// address returns the end for an address that belonged to no known pod.
func (c *cluster) address(addr netip.Addr, names []string) (*end, error) {
	endpoint, err := c.Endpoint(addr.String())
	if err != nil {
		return nil, err
	}
	if endpoint.Kind == reachability.Pod {
		return nil, fmt.Errorf("%v was of no known pod, and is that of a pod today", addr)
	}
	e := &end{title: addr.String(), endpoint: endpoint, prefix: netip.PrefixFrom(addr, addr.BitLen())}
	if b := c.block(addr); b != nil {
		e.prefix, e.title = b.Prefix, b.String()
	} else if endpoint.Kind == reachability.Node {
		e.title += " (node " + endpoint.Node + ")"
	} else if node := c.podRangeOf(addr); node != "" {
		return nil, fmt.Errorf("%v is in the pod range of node %s, and was of no known pod", addr, node)
	} else if len(names) > 0 {
		e.title += " (" + strings.Join(names, ", ") + ")"
	}
	e.peer.IPBlock = &networkingv1.IPBlock{CIDR: e.prefix.String()}
	return e, nil
}

// block returns the smallest named block that contains an address, or nil.
func (c *cluster) block(addr netip.Addr) *Block {
	var found *Block
	for i := range c.input.Blocks {
		b := &c.input.Blocks[i]
		if b.Prefix.Contains(addr) && (found == nil || b.Prefix.Bits() > found.Prefix.Bits()) {
			found = b
		}
	}
	return found
}

// podRangeOf returns the node whose pod range contains addr, or "".
func (c *cluster) podRangeOf(addr netip.Addr) string {
	for _, n := range c.objects.Nodes {
		for _, cidr := range append(n.Spec.PodCIDRs, n.Spec.PodCIDR) {
			if p, err := netip.ParsePrefix(cidr); err == nil && p.Contains(addr) {
				return n.Name
			}
		}
	}
	return ""
}

// titleOf returns the name of a workload in comments: "deploy/web", or the name of a pod
// without a workload. Names in other namespaces begin with the namespace.
func (c *cluster) titleOf(ref workloads.Ref) string {
	title := ref.Title()
	if ref.Namespace != c.input.Namespace {
		title = ref.Namespace + "/" + title
	}
	return title
}

// ownPolicies returns the NetworkPolicies of the namespace.
func (c *cluster) ownPolicies() []*networkingv1.NetworkPolicy {
	var own []*networkingv1.NetworkPolicy
	for _, o := range c.objects.Policies {
		if p, ok := o.(*networkingv1.NetworkPolicy); ok && p.Namespace == c.input.Namespace {
			own = append(own, p)
		}
	}
	return own
}

// audits reports whether a policy of the namespace is audited.
func (c *cluster) audits(p *networkingv1.NetworkPolicy) bool {
	if ns := c.namespaces[p.Namespace]; ns != nil {
		return compile.Audits(p, ns)
	}
	return compile.Audits(p, nil)
}

// peer returns the peer of rules that selects the same pods as s.
func (c *cluster) peer(s *selection) (networkingv1.NetworkPolicyPeer, error) {
	peer := networkingv1.NetworkPolicyPeer{PodSelector: &s.selector}
	namespace := s.workload.Namespace
	if namespace == c.input.Namespace {
		return peer, nil
	}
	if ns := c.namespaces[namespace]; ns == nil || ns.Labels[corev1.LabelMetadataName] != namespace {
		return peer, fmt.Errorf("namespace %s has no label %s", namespace, corev1.LabelMetadataName)
	}
	peer.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	return peer, nil
}

// Block is a named block of addresses.
type Block struct {
	Name   string
	Prefix netip.Prefix
}

// ParseBlock parses NAME=CIDR.
func ParseBlock(s string) (Block, error) {
	name, cidr, ok := strings.Cut(s, "=")
	if !ok || name == "" {
		return Block{}, fmt.Errorf("%s: must be NAME=CIDR", s)
	}
	prefix, err := netip.ParsePrefix(cidr)
	switch {
	case err != nil:
		return Block{}, fmt.Errorf("%s: %w", s, err)
	case prefix.Masked() != prefix:
		return Block{}, fmt.Errorf("%s: %v is an address within %v: name the block", s, prefix.Addr(), prefix.Masked())
	case prefix.Addr().Is4In6():
		return Block{}, fmt.Errorf("%s: write the block as one of IPv4", s)
	}
	return Block{printable.Text(name), prefix}, nil
}

// String returns "NAME CIDR".
func (b *Block) String() string { return b.Name + " " + b.Prefix.String() }

// sortedKeys returns the sorted keys of a map.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
