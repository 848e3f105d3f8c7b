package reachability

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// peerMeans tells in words whom a peer is.
func peerMeans(p *policy.Peer) string {
	switch {
	case p.Block != nil:
		means := "addresses " + p.Block.Prefix.String()
		for i, hole := range p.Block.Except {
			word := " except "
			if i > 0 {
				word = ", "
			}
			means += word + hole.String()
		}
		return means
	case p.Pods == nil:
		return "nobody"
	case p.Pods.Namespace != "":
		return podsMean(p.Pods.Pods) + " of namespace " + p.Pods.Namespace
	case p.Pods.Namespaces.Empty():
		return podsMean(p.Pods.Pods) + " of all namespaces"
	}
	return fmt.Sprintf("%s of namespaces with %v", podsMean(p.Pods.Pods), p.Pods.Namespaces)
}

func podsMean(s labels.Selector) string {
	if s.Empty() {
		return "all pods"
	}
	return "pods with " + s.String()
}

// portMeans tells in words what a port is.
func portMeans(p *policy.Port) string {
	switch {
	case p.Name != "":
		return fmt.Sprintf("%v %s", p.Proto, p.Name)
	case p.First > p.Last:
		return "nothing"
	case p.First <= 1 && p.Last == maxPort:
		return fmt.Sprintf("every port of %v", p.Proto)
	case p.First == p.Last:
		return fmt.Sprintf("%v %d", p.Proto, p.First)
	}
	return fmt.Sprintf("%v %d-%d", p.Proto, p.First, p.Last)
}

const maxPort = 65535

// whyNot tells why an item does not match, nothing if it does. at is the path of
// the item.
func (c *Cluster) whyNot(m policy.Match, f *flow, r *policy.Rule, at string) string {
	peer := c.snapshot.Endpoint(f.peerAddr())
	switch m {
	case policy.Matched:
		return ""
	case policy.Unreadable:
		return c.unreadable(r.Policy, at)
	case policy.PeerNoPod:
		if f.peer.onHost() {
			return fmt.Sprintf("%s is node %s, and selectors match pods only", f.peer.Name, f.peer.Node)
		}
		return fmt.Sprintf("%v is no pod's address", f.peerAddr())
	case policy.PeerOtherNamespace:
		return fmt.Sprintf("%s is in namespace %s", f.peer.Name, peer.Namespace)
	case policy.PeerNamespaceUnknown:
		return fmt.Sprintf("there is no Namespace object %s to have labels", peer.Namespace)
	case policy.PeerNamespaceLabels:
		return fmt.Sprintf("namespace %s has %s", peer.Namespace, labelsMean(peer.NamespaceLabels))
	case policy.PeerLabels:
		return fmt.Sprintf("%s has %s", f.peer.Name, labelsMean(peer.Labels))
	case policy.PeerOutside:
		return fmt.Sprintf("%v is not among them", f.peerAddr())
	case policy.PeerExcepted:
		return fmt.Sprintf("%v is excepted", f.peerAddr())
	}
	return c.whyNotPort(m, f)
}

func (c *Cluster) whyNotPort(m policy.Match, f *flow) string {
	p := f.packet
	switch m {
	case policy.OtherProtocol:
		return fmt.Sprintf("the connection is %v", p.Proto)
	case policy.OtherPort:
		return fmt.Sprintf("the connection is to port %d", p.Dst.Port())
	case policy.PortNoPod:
		return fmt.Sprintf("%s is no pod and declares no ports", f.dst.Name)
	case policy.PortNotDeclared:
		return fmt.Sprintf("%s declares no %v port of that name", f.dst.Name, p.Proto)
	}
	return fmt.Sprintf("%s declares the name for another port than %d", f.dst.Name, p.Dst.Port())
}

// unreadable finds the finding about an item that could not be compiled.
func (c *Cluster) unreadable(name, at string) string {
	var messages []string
	for _, found := range c.snapshot.Findings() {
		inside := strings.TrimPrefix(found.Field, at)
		if found.Policy.String() == name && inside != found.Field && (inside == "" || inside[0] == '.' || inside[0] == '[') {
			messages = append(messages, found.Message)
		}
	}
	return strings.Join(slices.Compact(messages), "; ")
}

func labelsMean(l labels.Set) string {
	if len(l) == 0 {
		return "no labels"
	}
	return l.String()
}
