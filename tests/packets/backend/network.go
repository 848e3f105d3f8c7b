package backend

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// network has the running hosts of a state.
type network struct {
	lab  *lab.Lab
	port int           // the first source port of the next probe
	held atomic.Uint32 // connections so far

	mu           sync.RWMutex // apply changes hosts while probe reads them
	hosts        map[string]*host
	destinations map[netip.Addr]destination // of connections through Services, by pod address
	nodes        map[*lab.Host]*host        // the servers of nodes
	outside      map[string]*host           // all that were ever added; they stay
}

// host is a pod, a node with host-network pods, or a host outside the cluster.
type host struct {
	*lab.Host
	node    string // to which the host is attached
	pod     bool
	serving []uint16
	sctp    *associations
}

func newNetwork(l *lab.Lab) (*network, error) {
	n := &network{lab: l, hosts: make(map[string]*host), nodes: make(map[*lab.Host]*host), outside: make(map[string]*host)}
	for _, node := range l.Nodes {
		n.nodes[node.Host] = &host{Host: node.Host, node: node.Name}
		if err := node.Set("netfilter/nf_conntrack_udp_timeout", udpTimeout); err != nil {
			return nil, fmt.Errorf("on %s: %w", node.Name, err)
		}
	}
	return n, nil
}

// apply removes hosts that state lacks and starts those that it adds.
func (n *network) apply(ctx context.Context, state *netpol.State) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.adopt(state)
	if err := n.removeSurplus(ctx, state); err != nil {
		return err
	}
	if err := n.addPods(ctx, state); err != nil {
		return err
	}
	if err := n.addHosts(ctx, state); err != nil {
		return err
	}
	for _, h := range n.hosts {
		if err := h.listen(state.Ports); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(state.Vias, func(v netpol.Via) bool { return v != netpol.Direct }) {
		return n.serve(ctx, state)
	}
	return nil
}

// adopt gives the addresses of running pods to the pods of a new state, which have none.
func (n *network) adopt(state *netpol.State) {
	for _, pod := range state.Pods {
		if len(pod.Status.PodIPs) > 0 {
			return
		}
	}
	for i, pod := range state.Pods {
		h := n.hosts[netpol.PodName(pod)]
		if h != nil && h.pod && h.node == pod.Spec.NodeName && !pod.Spec.HostNetwork {
			state.Pods[i] = running(pod, h.Addrs)
		}
	}
}

// running returns a copy of the pod that is running and has these addresses.
func running(pod *corev1.Pod, addrs []netip.Addr) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIPs = nil
	for _, addr := range addrs {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: addr.String()})
	}
	pod.Status.PodIP = pod.Status.PodIPs[0].IP
	return pod
}

// removeSurplus removes the pods that state does not have on the same node with the same
// addresses.
func (n *network) removeSurplus(ctx context.Context, state *netpol.State) error {
	keep := make(map[string]bool)
	for _, pod := range state.Pods {
		h := n.hosts[netpol.PodName(pod)]
		keep[netpol.PodName(pod)] = h != nil && netpol.IsUp(pod) &&
			h.node == pod.Spec.NodeName && h.pod != pod.Spec.HostNetwork && hasAddrs(pod, h.Addrs)
	}
	for name, h := range n.hosts {
		if keep[name] {
			continue
		}
		delete(n.hosts, name)
		if !h.pod {
			continue // nodes and hosts outside stay
		}
		if err := n.lab.Remove(ctx, h.Host); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
	}
	return nil
}

func hasAddrs(pod *corev1.Pod, addrs []netip.Addr) bool {
	return slices.EqualFunc(pod.Status.PodIPs, addrs, func(ip corev1.PodIP, addr netip.Addr) bool { return ip.IP == addr.String() })
}

// addPods starts the missing pods and writes their addresses into state.
func (n *network) addPods(ctx context.Context, state *netpol.State) error {
	var missing []*corev1.Pod
	for i, pod := range state.Pods {
		name := netpol.PodName(pod)
		switch {
		case !netpol.IsUp(pod) || n.hosts[name] != nil:
		case pod.Spec.HostNetwork:
			node := n.lab.Node(pod.Spec.NodeName)
			if node == nil {
				return fmt.Errorf("pod %s: no node %q", name, pod.Spec.NodeName)
			}
			n.hosts[name] = n.nodes[node.Host]
			state.Pods[i] = running(pod, node.Addrs)
		default:
			state.Pods[i] = pod.DeepCopy() // the lab gives it addresses
			missing = append(missing, state.Pods[i])
		}
	}
	added, err := n.lab.AddPods(ctx, missing...)
	if err != nil {
		return err
	}
	for _, pod := range added {
		n.hosts[pod.Name] = &host{Host: pod.Host, node: pod.Object.Spec.NodeName, pod: true}
	}
	return nil
}

// addHosts starts the missing hosts outside the cluster. It reuses a host of an earlier
// state, so the node and the addresses must be the same.
func (n *network) addHosts(ctx context.Context, state *netpol.State) error {
	for _, wanted := range state.Hosts {
		node := n.lab.Node(wanted.Node)
		if node == nil {
			return fmt.Errorf("host %s: no node %q", wanted.Name, wanted.Node)
		}
		h := n.outside[wanted.Name]
		if h == nil {
			added, err := n.lab.AddHost(ctx, node, wanted.Name, wanted.Addrs...)
			if err != nil {
				return err
			}
			h = &host{Host: added, node: wanted.Node}
			n.outside[wanted.Name] = h
		}
		if h.node != wanted.Node || !slices.Equal(h.Addrs, wanted.Addrs) {
			return fmt.Errorf("host %s: it was at %s as %v before, not at %s as %v", wanted.Name, h.node, h.Addrs, wanted.Node, wanted.Addrs)
		}
		n.hosts[wanted.Name] = h
	}
	return nil
}

// listen starts servers on the ports that a host does not serve yet.
func (h *host) listen(ports []int32) error {
	for _, port := range ports {
		if slices.Contains(h.serving, uint16(port)) {
			continue
		}
		if err := h.Serve(uint16(port)); err != nil {
			return err
		}
		h.serving = append(h.serving, uint16(port))
	}
	if h.sctp != nil {
		return nil
	}
	var err error
	h.sctp, err = receiveSCTP(h.Host)
	return err
}
