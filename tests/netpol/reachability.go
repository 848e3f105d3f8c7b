package netpol

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Reachability is what should be seen after a step: a truth table for each
// traffic of the model. It begins with everything connected. Later expectations
// overwrite earlier ones.
//
// Pods are named by patterns: "x/a", "x/*", "*/a", "*/[ab]", or "*" for everyone.
// A pattern that fits nobody panics.
//
// To NetworkPolicy a pod always reaches itself, and a pod and its own node always
// reach each other; expectations leave these cells alone. What an administrator can
// deny of them, WithOwn is for.
type Reachability struct {
	state   *State
	traffic []Traffic
	tables  map[Traffic]*TruthTable
	own     bool
}

// NewReachability returns tables over the endpoints of state, all connected.
func NewReachability(state *State, traffic []Traffic) *Reachability {
	r := &Reachability{state: state, traffic: traffic, tables: make(map[Traffic]*TruthTable)}
	names := state.Endpoints()
	for _, t := range traffic {
		r.tables[t] = NewTruthTable(names, true)
	}
	return r
}

// State returns the cluster that r is about, for expectations that depend on what
// addresses the backend gave.
func (r *Reachability) State() *State { return r.state }

// Traffic returns what r has tables for.
func (r *Reachability) Traffic() []Traffic { return r.traffic }

// Table returns the table of one of r's traffic.
func (r *Reachability) Table(traffic Traffic) *TruthTable { return r.tables[traffic] }

// For returns the part of r that is about any of the kinds, whose zero fields mean
// any: For(TCP(80)) is TCP 80 over both families. What is expected of the part is
// expected of r. A part without any table panics.
func (r *Reachability) For(kinds ...Traffic) *Reachability {
	part := &Reachability{state: r.state, tables: r.tables, own: r.own}
	for _, t := range r.traffic {
		if slices.ContainsFunc(kinds, func(kind Traffic) bool { return kind.covers(t) }) {
			part.traffic = append(part.traffic, t)
		}
	}
	if len(part.traffic) == 0 {
		panic(fmt.Sprintf("netpol: nothing is probed with %v", kinds))
	}
	return part
}

// WithOwn returns r for expectations that are also about what only an administrator
// can deny: that a pod reaches its own node, and itself through its Service.
func (r *Reachability) WithOwn() *Reachability {
	all := *r
	all.own = true
	return &all
}

// ExpectAll states whether everyone reaches everyone.
func (r *Reachability) ExpectAll(connected bool) { r.ExpectPeer("*", "*", connected) }

// ExpectAllIngress states whether everyone reaches to.
func (r *Reachability) ExpectAllIngress(to string, connected bool) { r.ExpectPeer("*", to, connected) }

// ExpectAllEgress states whether from reaches everyone.
func (r *Reachability) ExpectAllEgress(from string, connected bool) {
	r.ExpectPeer(from, "*", connected)
}

// ExpectPeer states whether from reaches to.
func (r *Reachability) ExpectPeer(from, to string, connected bool) {
	names := r.state.Endpoints()
	clients, servers := match(names, from), match(names, to)
	for _, client := range clients {
		for _, server := range servers {
			for _, t := range r.traffic {
				if !r.exempt(client, server, t) {
					r.tables[t].Set(client, server, connected)
				}
			}
		}
	}
}

// match returns the names that fit a pattern.
func match(names []string, pattern string) []string {
	if pattern == "*" {
		return names
	}
	var fit []string
	for _, name := range names {
		ok, err := path.Match(pattern, name)
		if err != nil {
			panic("netpol: pattern " + pattern + ": " + err.Error())
		}
		if ok {
			fit = append(fit, name)
		}
	}
	if len(fit) == 0 {
		panic(fmt.Sprintf("netpol: %q fits none of %v", pattern, names))
	}
	return fit
}

// exempt tells whether policy has no say: a pod and itself, a pod and its node.
// With own, what remains is that no node is kept from its pods, and that nobody sees
// what a pod sends to its own address.
func (r *Reachability) exempt(from, to string, t Traffic) bool {
	if from == to {
		return !r.own || t.Via == Direct
	}
	client, server := r.state.findPod(from), r.state.findPod(to)
	if client == nil || server == nil || !OwnNode(client, server) {
		return false
	}
	return !r.own || client.Spec.HostNetwork
}

func (s *State) findPod(name string) *corev1.Pod {
	for _, pod := range s.Pods {
		if PodName(pod) == name {
			return pod
		}
	}
	return nil
}

// OwnNode tells whether traffic between two pods is that of a pod with its own
// node, which one of them is by using the node's network.
func OwnNode(a, b *corev1.Pod) bool {
	return (a.Spec.HostNetwork || b.Spec.HostNetwork) && a.Spec.NodeName == b.Spec.NodeName
}
