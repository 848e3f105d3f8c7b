// Package lab builds the network of a small cluster on one machine: nodes that route, pods
// behind them, servers, probes, and the agent under test. Each node and pod is a network
// namespace, so packets between pods cross the netfilter hooks of their nodes, as in a
// cluster.
//
// The namespaces have no names and exist only while this process lives, so a crash leaves
// nothing behind. The lab handles addresses, processes and files; it does not interpret
// policies. It needs root and the ip command.
package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Config is the configuration of a Lab.
type Config struct {
	// Nodes is the number of nodes, 1 or 2. They are named node-1 and node-2.
	Nodes int
}

// Validate returns an error that names the invalid field.
func (c Config) Validate() error {
	if c.Nodes < 1 || c.Nodes > 2 {
		return fmt.Errorf("field Nodes is %d, want 1 or 2", c.Nodes)
	}
	return nil
}

// Check returns an error if this process cannot build a lab. It wraps errors.ErrUnsupported
// if rights or tools are missing.
func Check() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("a lab needs root: %w", errors.ErrUnsupported)
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return fmt.Errorf("a lab needs iproute2: %w: %w", err, errors.ErrUnsupported)
	}
	ns, err := newNamespace()
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", err, errors.ErrUnsupported)
	}
	if err != nil {
		return err
	}
	ns.close()
	return nil
}

// Lab is a running network. Its methods must be called from one goroutine; those of its
// hosts may be called from any.
type Lab struct {
	Nodes []*Node
	hosts []*Host
}

// New builds the nodes and connects them. Close removes everything.
func New(ctx context.Context, cfg Config) (_ *Lab, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	l := &Lab{}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	for i := range cfg.Nodes {
		node, err := newNode(ctx, i+1)
		if err != nil {
			return nil, err
		}
		l.Nodes = append(l.Nodes, node)
		l.hosts = append(l.hosts, node.Host)
	}
	if cfg.Nodes == 2 {
		return l, join(ctx, l.Nodes[0], l.Nodes[1])
	}
	return l, l.Nodes[0].ip(ctx, l.Nodes[0].addressLines("lo"))
}

// join connects two nodes and adds routes to each other's pods.
func join(ctx context.Context, a, b *Node) error {
	if err := a.ip(ctx, fmt.Sprintf("link add up0 index %d type veth peer name up0 netns %s\n", firstLink, b.ns.path())); err != nil {
		return err
	}
	for node, other := range map[*Node]*Node{a: b, b: a} {
		lines := node.addressLines("up0") + linkUp("up0")
		for i, prefix := range other.PodCIDRs {
			lines += fmt.Sprintf("route add %s via %s\n", prefix, other.Addrs[i])
		}
		if err := node.ip(ctx, lines); err != nil {
			return err
		}
	}
	return a.waitFor(ctx, b.Host)
}

// Node returns the node of that name, or nil.
func (l *Lab) Node(name string) *Node {
	for _, node := range l.Nodes {
		if node.Name == name {
			return node
		}
	}
	return nil
}

// Pod is a pod with a network.
type Pod struct {
	*Host
	// Object is the pod as the API would return it, running and with addresses.
	Object *corev1.Pod
}

// AddPods adds a network for each object on the node in its spec.nodeName. A pod without
// status.podIPs gets an address of each family, which is written into the object. The
// object becomes Running.
func (l *Lab) AddPods(ctx context.Context, objects ...*corev1.Pod) ([]*Pod, error) {
	pods := make([]*Pod, len(objects))
	attachments := make(map[*Node][]*Host)
	for i, object := range objects {
		node := l.Node(object.Spec.NodeName)
		if node == nil {
			return nil, fmt.Errorf("pod %s/%s: no node %q in the lab", object.Namespace, object.Name, object.Spec.NodeName)
		}
		addrs, err := node.podAddrs(object)
		if err != nil {
			return nil, err
		}
		host, err := l.newHost(object.Namespace+"/"+object.Name, addrs...)
		if err != nil {
			return nil, err
		}
		pods[i] = &Pod{Host: host, Object: object}
		attachments[node] = append(attachments[node], host)
	}
	for node, hosts := range attachments {
		if err := node.attach(ctx, hosts); err != nil {
			return nil, err
		}
	}
	return pods, nil
}

// AddHost attaches a host that is not a pod to a node, such as a client outside the
// cluster, and adds a route on the other node.
func (l *Lab) AddHost(ctx context.Context, node *Node, name string, addrs ...netip.Addr) (*Host, error) {
	host, err := l.newHost(name, addrs...)
	if err != nil {
		return nil, err
	}
	if err := node.attach(ctx, []*Host{host}); err != nil {
		return nil, err
	}
	for _, other := range l.Nodes {
		if other == node {
			continue
		}
		var lines strings.Builder
		for _, addr := range addrs {
			fmt.Fprintf(&lines, "route add %s via %s\n", addr, pick(node.Addrs, addr.Is4()))
		}
		if err := other.ip(ctx, lines.String()); err != nil {
			return nil, err
		}
	}
	return host, nil
}

func (l *Lab) newHost(name string, addrs ...netip.Addr) (*Host, error) {
	host, err := newHost(name, addrs...)
	if err == nil {
		l.hosts = append(l.hosts, host)
	}
	return host, err
}

// Remove removes a host's network, as if its pod were deleted. Its addresses can be reused
// afterwards.
func (l *Lab) Remove(ctx context.Context, host *Host) error {
	if host.uplink == nil {
		return errors.New(host.Name + " has no link to remove")
	}
	if err := host.uplink.ip(ctx, "link del "+host.link+"\n"); err != nil {
		return err
	}
	host.close()
	return nil
}

// Close stops servers and agents and removes networks. It may be called twice.
func (l *Lab) Close() {
	for _, node := range l.Nodes {
		node.killAgents()
	}
	for _, host := range l.hosts {
		host.close()
	}
}

// pick returns the first address of the family, or the zero Addr.
func pick(addrs []netip.Addr, is4 bool) netip.Addr {
	for _, addr := range addrs {
		if addr.Is4() == is4 {
			return addr
		}
	}
	return netip.Addr{}
}

// inParallel runs f for each host and returns the first error.
func inParallel(hosts []*Host, f func(*Host) error) error {
	var group errgroup.Group
	for _, host := range hosts {
		group.Go(func() error { return f(host) })
	}
	return group.Wait()
}
