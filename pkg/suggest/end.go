package suggest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/printable"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// cluster finds the ends of flows. It has a pod for each one that is recorded, also for
// those that are gone, as far as their workload is there.
type cluster struct {
	input   *Input
	objects clusterstate.Input // those of input, with pods that are recorded
	*reachability.Cluster
	pods       map[string]*corev1.Pod // by "namespace/name"
	byWorkload map[workloads.Ref][]*corev1.Pod
	namespaces map[string]*corev1.Namespace
	selections map[workloads.Ref]*selection
}

// end is the source or the destination of a flow.
type end struct {
	title    string // for comments
	endpoint reachability.Endpoint

	workload  workloads.Ref // of a pod
	selection *selection
	prefix    netip.Prefix // of an address: itself, or a named block

	peer networkingv1.NetworkPolicyPeer // of rules for it
}

func newCluster(in *Input, recorded []*flow) *cluster {
	c := &cluster{input: in, objects: in.Cluster, namespaces: map[string]*corev1.Namespace{}, selections: map[workloads.Ref]*selection{}}
	for _, ns := range in.Cluster.Namespaces {
		c.namespaces[ns.Name] = ns
	}
	c.index()
	var again []*corev1.Pod
	for _, f := range recorded {
		for _, n := range []name{f.source, f.destination} {
			if pod := c.again(n); pod != nil {
				again = append(again, pod)
				c.pods[n.String()] = pod
			}
		}
	}
	c.objects.Pods = slices.DeleteFunc(slices.Clone(c.objects.Pods), func(p *corev1.Pod) bool {
		return c.pods[p.Namespace+"/"+p.Name] != p // it has ended, and is there again
	})
	c.objects.Pods = append(c.objects.Pods, again...)
	c.objects = reachability.WithAddresses(c.objects)
	c.index()
	c.Cluster = reachability.New(c.objects)
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

// again returns a pod for one that is recorded and does not live any more: one like those
// of its workload. It is nil if it lives, or if its workload is not known.
func (c *cluster) again(n name) *corev1.Pod {
	if n.pod == "" {
		return nil
	}
	like := c.pods[n.String()]
	switch {
	case like == nil:
		owners := c.ownersOf(n)
		if len(owners) != 1 {
			return nil
		}
		pods := c.byWorkload[owners[0]]
		like = pods[max(0, slices.IndexFunc(pods, selectable))]
	case !compile.Ended(like):
		return nil
	}
	pod := like.DeepCopy()
	pod.Name, pod.DeletionTimestamp = n.pod, nil
	pod.UID = types.UID("recorded/" + n.String())
	pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
	return pod
}

// ownersOf returns the workloads that may have made a pod that is gone.
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

// end returns the end of that name.
func (c *cluster) end(n name, names []string) (*end, error) {
	if n.pod == "" {
		return c.address(n.addr, names)
	}
	pod := c.pods[n.String()]
	if pod == nil {
		return nil, c.gone(n)
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

// gone is why a pod that is not there cannot be the end of a flow.
func (c *cluster) gone(n name) error {
	var titles []string
	for _, ref := range c.ownersOf(n) {
		titles = append(titles, c.titleOf(ref))
	}
	if len(titles) == 0 {
		return fmt.Errorf("pod %v is gone, and its name is not one that a workload of today gives to its pods", n)
	}
	return fmt.Errorf("pod %v is gone, and may have been one of %s", n, strings.Join(titles, " or of "))
}

// address returns the end of an address that was no known pod's.
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

// block returns the smallest named block with an address, nil if there is none.
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

// podRangeOf returns the node whose pods have addresses around addr.
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

// titleOf returns the name of a workload in comments: "deploy/web", and that of a pod without
// a workload. Those of other namespaces have them in front.
func (c *cluster) titleOf(ref workloads.Ref) string {
	title := ref.Name
	if ref.Kind != workloads.Pod {
		title = workloads.ShortName(ref.Kind) + "/" + title
	}
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

// peer returns the peer of rules that selects the pods of a selection.
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

// Block is a block of addresses that has a name.
type Block struct {
	Name   string
	Prefix netip.Prefix
}

// ParseBlock reads NAME=CIDR. An error names what is wrong with it.
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

// sortedKeys returns the keys of a map in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
