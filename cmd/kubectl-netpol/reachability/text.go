package reachability

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// peerMeans describes what a peer matches.
func peerMeans(p *policy.Peer) string {
	switch {
	case p.Blocks != nil:
		return blocksMean(p.Blocks)
	case p.Nodes != nil && p.Nodes.Empty():
		return "all nodes"
	case p.Nodes != nil:
		return "nodes with " + p.Nodes.String()
	case p.Domains != nil:
		return "addresses that the pod has learned for " + joined(p.Domains)
	case p.Pods == nil:
		return "nothing"
	case p.Pods.Namespace != "":
		return podsMean(p.Pods) + " of namespace " + p.Pods.Namespace
	case p.Pods.Namespaces.Empty():
		return podsMean(p.Pods) + " of all namespaces"
	}
	return fmt.Sprintf("%s of namespaces with %v", podsMean(p.Pods), p.Pods.Namespaces)
}

func blocksMean(blocks []policy.Block) string {
	means := make([]string, len(blocks))
	for i, b := range blocks {
		means[i] = b.Prefix.String()
		if len(b.Except) > 0 {
			means[i] += " except " + joined(b.Except)
		}
	}
	return "addresses " + strings.Join(means, ", ")
}

func joined[S fmt.Stringer](all []S) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = s.String()
	}
	return strings.Join(texts, ", ")
}

func podsMean(s *policy.PodSelector) string {
	switch {
	case s.SelectsWhole():
		return "all pods"
	case s.Accounts != nil:
		return "pods of service account " + strings.Join(s.Accounts, " or ")
	}
	return "pods with " + s.Pods.String()
}

// portMeans describes what a port matches.
func portMeans(p *policy.Port) string {
	switch {
	case p.Name != "" && p.Proto == packet.Unknown:
		return p.Name + " of any protocol"
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

// anyMeans describes a list that matches everything: it is empty, or a part of it cannot be
// honoured and the rule therefore denies.
func (c *Cluster) anyMeans(what string, r *policy.Rule, place policy.Place) string {
	if why := c.unreadable(r.Policy, place); why != "" {
		return what + ": " + why
	}
	if r.AnyPeer && r.Tier != policy.NetworkPolicyTier {
		return what
	}
	return what + ": the list is empty"
}

// whyNot explains why the item at a place does not match. It returns "" if it does.
func (c *Cluster) whyNot(m policy.Match, f *flow, r *policy.Rule, place policy.Place) string {
	switch m {
	case policy.Matched:
		return ""
	case policy.PeerNoPod, policy.PeerOtherNamespace, policy.PeerNamespaceUnknown, policy.PeerNamespaceLabels, policy.PeerLabels, policy.PeerOtherAccount:
		return c.whyNotPod(m, f)
	case policy.Unreadable:
		return c.unreadable(r.Policy, place)
	case policy.PeerNoNode:
		return fmt.Sprintf("%v is in no Node's status.addresses", f.peerText())
	case policy.PeerNodeLabels:
		return fmt.Sprintf("node %s has %s", f.peer.Node, labelsMean(c.labels[f.peer.Node]))
	case policy.PeerNotLearned:
		return "addresses learned from DNS are known to the agent only"
	case policy.PeerOutOfScope:
		return fmt.Sprintf("names do not match %v: it is, or may be, the address of a pod or of a node, or a special one", f.peerText())
	case policy.PeerNotInBlock:
		return fmt.Sprintf("%v is not among them", f.peerText())
	case policy.PeerExcepted:
		return fmt.Sprintf("%v is excepted", f.peerText())
	}
	return c.whyNotPort(m, f)
}

// whyNotPod is whyNot for peers that select pods.
func (c *Cluster) whyNotPod(m policy.Match, f *flow) string {
	peer, name := f.pod, f.peer.Name
	if f.disputed {
		name = peer.String()
	}
	switch m {
	case policy.PeerNoPod:
		if f.peer.onHost() {
			return fmt.Sprintf("%s is node %s, and selectors match pods only", f.peer.Name, f.peer.Node)
		}
		return fmt.Sprintf("%v is no pod's address", f.peerText())
	case policy.PeerOtherNamespace:
		return fmt.Sprintf("%s is in namespace %s", name, peer.Namespace)
	case policy.PeerNamespaceUnknown:
		return fmt.Sprintf("there is no Namespace object %s to have labels", peer.Namespace)
	case policy.PeerNamespaceLabels:
		return fmt.Sprintf("namespace %s has %s", peer.Namespace, labelsMean(peer.NamespaceLabels.Set()))
	case policy.PeerLabels:
		return fmt.Sprintf("%s has %s", name, labelsMean(peer.Labels.Set()))
	}
	return fmt.Sprintf("%s has service account %s", name, peer.Account)
}

func (c *Cluster) whyNotPort(m policy.Match, f *flow) string {
	p := f.packet
	switch m {
	case policy.OtherProtocol:
		return fmt.Sprintf("the connection is %v", p.Proto)
	case policy.OtherPort:
		return fmt.Sprintf("the connection is to port %d", p.Dst.Port())
	case policy.PortNoPod:
		return fmt.Sprintf("%s is not a pod and declares no ports", f.dst.Name)
	case policy.PortHidden:
		return fmt.Sprintf("the ports of %v cannot be read", p.Proto)
	case policy.PortNotDeclared:
		return fmt.Sprintf("%s declares no %v port of that name", f.dst.Name, p.Proto)
	}
	return fmt.Sprintf("%s declares the name for another port than %d", f.dst.Name, p.Dst.Port())
}

// unreadable returns the fault at a place of a policy.
func (c *Cluster) unreadable(ref *policy.Ref, place policy.Place) string {
	var messages []string
	for _, found := range c.snapshot.Findings() {
		if found.Policy == *ref && place.Contains(found.Place) {
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
