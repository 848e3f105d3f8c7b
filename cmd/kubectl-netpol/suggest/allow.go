package suggest

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Connections are all connections from one of some endpoints to one of others.
type Connections struct {
	From, To []reachability.Endpoint
	Port     reachability.Port
	Family   reachability.Family
}

// Allow returns the NetworkPolicies with this name that connections lack: those that are allowed
// need none. Input has no records and no namespace. What policies cannot allow is Uncovered.
func Allow(in Input, connections *Connections, name string) (*Suggestion, error) {
	wanted, err := connections.flows(in.Cluster.Pods)
	if err != nil {
		return nil, err
	}
	in.Enforced = true
	all := &Suggestion{}
	for _, namespace := range namespacesOf(wanted) {
		in.Namespace = namespace
		s := &suggester{cluster: newCluster(&in, nil), rules: map[string]*subject{}}
		found := s.withoutImpossible(s.resolve(wanted))
		s.addNeedsIn(found, s.Cluster)
		s.Policies = s.named(name)
		s.noteIsolation()
		all.Policies, all.Notes = append(all.Policies, s.Policies...), append(all.Notes, s.Notes...)
		in.Cluster = s.Apply(in.Cluster)
	}
	s := &suggester{cluster: newCluster(&in, nil)}
	for _, f := range s.resolve(wanted) {
		if !f.allowed(s.Cluster) {
			s.uncovered(f.String(), errors.New(why(s.Cluster, f)))
		}
	}
	all.Uncovered, all.Flows = s.Uncovered, len(wanted)-len(s.Uncovered)
	return all, nil
}

// flows returns the connections that are possible, as flows without packets.
func (c *Connections) flows(pods []*corev1.Pod) ([]*flow, error) {
	names := map[string]name{}
	for _, e := range slices.Concat(c.From, c.To) {
		names[e.Name] = nameOfEndpoint(&e, pods)
	}
	var all []*flow
	for i := range c.From {
		for j := range c.To {
			number, ok := reachability.Connectable(&c.From[i], &c.To[j], c.Port, c.Family)
			if !ok || c.From[i].Name == c.To[j].Name {
				continue
			}
			all = append(all, &flow{flowKey: flowKey{names[c.From[i].Name], names[c.To[j].Name], c.Port.Proto.String(), number}})
		}
	}
	if len(all) == 0 {
		return nil, errors.New("no such connection is possible")
	}
	return all, nil
}

// nameOfEndpoint returns the name of an endpoint: policies treat pods in the network of a node
// as its address.
func nameOfEndpoint(e *reachability.Endpoint, pods []*corev1.Pod) name {
	addr := e.Addrs()[0]
	if e.Kind != reachability.Pod {
		return name{addr: addr}
	}
	for _, pod := range pods {
		if !compile.Ended(pod) && !pod.Spec.HostNetwork && (pod.Namespace+"/"+pod.Name == e.Name || slices.Contains(compile.Addresses(pod), addr)) {
			return name{pod.Namespace, pod.Name, addr}
		}
	}
	return name{addr: addr}
}

// namespacesOf returns the namespaces of the pods in flows.
func namespacesOf(all []*flow) []string {
	var found []string
	for _, f := range all {
		for _, n := range []name{f.source, f.destination} {
			if n.pod != "" && !slices.Contains(found, n.namespace) {
				found = append(found, n.namespace)
			}
		}
	}
	return found
}

// named returns one policy with a name for each subject, as far as that is not taken.
func (s *suggester) named(name string) []Policy {
	names := map[string]bool{}
	for _, p := range s.ownPolicies() {
		names[p.Name] = true
	}
	var all []Policy
	for _, key := range sortedKeys(s.rules) {
		all = append(all, s.rules[key].policy(s, name, names))
	}
	return all
}

// noteIsolation says which policies isolate pods that no policy isolates today: for these, only a
// default of administrators denies the connection.
func (s *suggester) noteIsolation() {
	for i, key := range sortedKeys(s.rules) {
		for _, t := range s.Policies[i].Spec.PolicyTypes {
			if !s.isolatedToday(s.rules[key], t) {
				s.note(fmt.Sprintf("%s isolates %s: other connections of %s that no NetworkPolicy allows are denied then.", s.Policies[i].Name, s.rules[key].title(), directionOf(t)))
			}
		}
	}
}

func directionOf(t networkingv1.PolicyType) policy.Direction {
	if t == networkingv1.PolicyTypeEgress {
		return policy.Egress
	}
	return policy.Ingress
}

// isolatedToday reports whether enforced policies isolate all pods of a subject in a direction.
func (s *suggester) isolatedToday(sub *subject, t networkingv1.PolicyType) bool {
	for _, pod := range sub.pods {
		if !slices.ContainsFunc(s.ownPolicies(), func(p *networkingv1.NetworkPolicy) bool {
			selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
			return err == nil && !s.audits(p) && isolates(p, t) && selector.Matches(labels.Set(pod.Labels))
		}) {
			return false
		}
	}
	return true
}
