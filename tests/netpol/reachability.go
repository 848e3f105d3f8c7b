package netpol

import (
	"fmt"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Reachability is the expectation after a step: a truth table for each kind of traffic of
// the model. At first everything is connected. Later expectations overwrite earlier ones.
//
// Pods are named by patterns: "x/a", "x/*", "*/a", "*/[ab]", or "*" for all. A pattern that
// matches no pod panics.
//
// With NetworkPolicy a pod always reaches itself, and a pod and its own node always reach
// each other, so expectations do not change these cells. WithOwn includes those of them
// that an administrator can deny.
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

// State returns the cluster, for expectations that depend on the addresses of pods.
func (r *Reachability) State() *State { return r.state }

// Traffic returns the kinds of traffic that r has tables for.
func (r *Reachability) Traffic() []Traffic { return r.traffic }

// Table returns the table of one kind of traffic.
func (r *Reachability) Table(traffic Traffic) *TruthTable { return r.tables[traffic] }

// For returns r restricted to some kinds of traffic, whose zero fields match any value:
// For(TCP(80)) is TCP 80 over both families. Expectations of the result are expectations of
// r. It panics if r has no such traffic.
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

// WithOwn returns r for expectations that include what only an administrator can deny: that
// a pod reaches its own node, and itself through its Service.
func (r *Reachability) WithOwn() *Reachability {
	all := *r
	all.own = true
	return &all
}

// ExpectAll sets whether all pods reach all pods.
func (r *Reachability) ExpectAll(connected bool) { r.ExpectPeer("*", "*", connected) }

// ExpectAllIngress sets whether all pods reach to.
func (r *Reachability) ExpectAllIngress(to string, connected bool) { r.ExpectPeer("*", to, connected) }

// ExpectAllEgress sets whether from reaches all pods.
func (r *Reachability) ExpectAllEgress(from string, connected bool) {
	r.ExpectPeer(from, "*", connected)
}

// ExpectPeer sets whether from reaches to.
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

// match returns the names that match a pattern.
func match(names []string, pattern string) []string {
	if pattern == "*" {
		return names
	}
	var matching []string
	for _, name := range names {
		ok, err := path.Match(pattern, name)
		if err != nil {
			panic("netpol: pattern " + pattern + ": " + err.Error())
		}
		if ok {
			matching = append(matching, name)
		}
	}
	if len(matching) == 0 {
		panic(fmt.Sprintf("netpol: %q matches none of %v", pattern, names))
	}
	return matching
}

// exempt reports whether policies do not apply, because the connection is from a pod to
// itself or between a pod and its node. With own, only connections that an administrator
// cannot deny are exempt: those of a node to its pods, and those of a pod to its own
// address, which never leave the pod.
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

// OwnNode reports whether traffic between two pods is traffic between a pod and its own
// node, because one of them is a host-network pod there.
func OwnNode(a, b *corev1.Pod) bool {
	return (a.Spec.HostNetwork || b.Spec.HostNetwork) && a.Spec.NodeName == b.Spec.NodeName
}
