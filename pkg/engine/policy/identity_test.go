package policy

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// An evaluation is shared by exactly those pods from which the rules read the same.
func TestPodsOfOneIdentityAreEvaluatedOnce(t *testing.T) {
	inTeams := func(text string) Peer {
		return Peer{Pods: &PodSelector{Namespaces: selector(text), Pods: selector("")}}
	}
	ofAccount := func(name string) Peer {
		return Peer{Pods: &PodSelector{Namespaces: selector(""), Pods: selector(""), Accounts: []string{name}}}
	}
	many := labels.Set{"app": "a"}
	for i := range maxPacked {
		many[fmt.Sprint("l", i)] = ""
	}
	a := Endpoint{Namespace: "x", Labels: NewLabels(labels.Set{"app": "a", "hash": "1"}), NamespaceLabels: NewLabels(labels.Set{"team": "red", "cost": "1"})}
	labeled := func(l labels.Set) func(*Endpoint) { return func(e *Endpoint) { e.Labels = NewLabels(l) } }
	in := func(l Labels) func(*Endpoint) { return func(e *Endpoint) { e.NamespaceLabels = l } }
	for _, tc := range []struct {
		name   string
		peer   Peer
		change func(*Endpoint) // turns pod a into the other pod
		want   int             // evaluations with two pods of each kind
	}{
		{"another pod", pods("app=a"), func(e *Endpoint) { e.Name = "b" }, 1},
		{"a label that is not read", pods("app=a"), labeled(labels.Set{"app": "a", "hash": "2"}), 1},
		{"a label that is not read is missing", pods("app=a"), labeled(labels.Set{"app": "a"}), 1},
		{"a value that no rule has", pods("app!=x"), labeled(labels.Set{"app": "b", "hash": "1"}), 1},
		{"a value that is selected", pods("app=b"), labeled(labels.Set{"app": "b"}), 2},
		{"a value that is excluded", pods("app!=b"), labeled(labels.Set{"app": "b"}), 2},
		{"a label is missing that must be there", pods("hash"), labeled(labels.Set{"app": "a"}), 2},
		{"a label is missing that must not be there", pods("!hash"), labeled(labels.Set{"app": "a"}), 2},
		{"values that are compared as numbers", pods("hash>1"), labeled(labels.Set{"app": "a", "hash": "2"}), 4},
		{"more labels than are looked at", pods("l3"), labeled(many), 3},
		{"an account that no rule has", ofAccount("s"), func(e *Endpoint) { e.Account = "u" }, 1},
		{"an account that is selected", ofAccount("s"), func(e *Endpoint) { e.Account = "s" }, 2},
		{"an account where none is read", pods("app=a"), func(e *Endpoint) { e.Account = "s" }, 1},
		{"another namespace", pods("app=a"), func(e *Endpoint) { e.Namespace = "y" }, 2},
		{"another namespace that is not read", inTeams("team=red"), func(e *Endpoint) { e.Namespace = "y" }, 1},
		{"a label of the namespace that is not read", inTeams("team=red"), in(NewLabels(labels.Set{"team": "red"})), 1},
		{"a value of the namespace that no rule has", inTeams("team!=x"), in(NewLabels(labels.Set{"team": "blue"})), 1},
		{"a label of the namespace that is selected", inTeams("team=blue"), in(NewLabels(labels.Set{"team": "blue"})), 2},
		{"a label of the namespace that is excluded", inTeams("team!=blue"), in(NewLabels(labels.Set{"team": "blue"})), 2},
		{"the namespace has a label like the pod's", inTeams("app=a"), in(NewLabels(labels.Set{"app": "a"})), 2},
		{"the namespace has no labels", inTeams("!team"), in(NewLabels(nil)), 2},
		{"the namespace is not known", inTeams("!color"), in(Labels{}), 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := a
			tc.change(&b)
			chain := &Chain{Rules: []Rule{rule(NetworkPolicyTier, Allow, tc.peer)}}
			checkIdentity(t, a, b, chain, tc.want, func(e *Endpoint) { checkFlow(t, chain, &flow{peer: e}) })
		})
	}
}

// checkIdentity checks two pods like a and two like b, each twice.
func checkIdentity(t *testing.T, a, b Endpoint, chain *Chain, evaluations int, check func(*Endpoint)) {
	t.Helper()
	for _, e := range []Endpoint{a, b, a, b} {
		e.Version = NewVersion()
		check(&e)
		check(&e)
	}
	if n := len(chain.prepare().cache.answers); n != evaluations {
		t.Errorf("%d evaluations are remembered, want %d", n, evaluations)
	}
}

// The same for destinations and the names of their ports.
func TestDestinationsOfOneIdentityAreEvaluatedOnce(t *testing.T) {
	declaring := func(ports ...NamedPort) Endpoint { return Endpoint{Namespace: "x", Ports: SortPorts(ports)} }
	web, api := NamedPort{"web", packet.TCP, 80}, NamedPort{"api", packet.TCP, 80}
	var many []NamedPort
	for i := range maxIdentified + 1 {
		many = append(many, NamedPort{fmt.Sprint("p", i), packet.TCP, 80})
	}
	for _, tc := range []struct {
		name  string
		a, b  Endpoint
		proto packet.Proto
		want  int
	}{
		{"another pod", declaring(web), declaring(web), packet.TCP, 1},
		{"another port, too", declaring(web), declaring(web, NamedPort{"web", packet.TCP, 81}), packet.TCP, 1},
		{"a name that no rule has, too", declaring(web), declaring(web, NamedPort{"x", packet.TCP, 80}), packet.TCP, 1},
		{"another name", declaring(web), declaring(api), packet.TCP, 2},
		{"another name, too", declaring(web), declaring(web, api), packet.TCP, 2},
		{"only a name that no rule has", declaring(web), declaring(NamedPort{"x", packet.TCP, 80}), packet.TCP, 2},
		{"nothing", declaring(web), declaring(), packet.TCP, 1},
		{"more names than are looked at", declaring(web), declaring(many...), packet.TCP, 3},
		{"ports that cannot be read", declaring(web), declaring(api), packet.Unknown, 2},
		{"a protocol that cannot be read", declaring(web), declaring(NamedPort{"web", packet.UDP, 80}), packet.Unknown, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			chain := &Chain{Rules: repeat(3, func(i int, r *Rule) {
				r.Action, r.AnyPeer, r.AnyPort = Deny, true, false
				r.Ports = []Port{{Name: []string{"web", "api", "p32"}[i], Proto: packet.TCP}}
			})}
			checkIdentity(t, tc.a, tc.b, chain, tc.want, func(e *Endpoint) {
				checkFlow(t, chain, &flow{dst: e, proto: tc.proto, dstPort: 80})
			})
		})
	}
}

// checkFlow compares the index and its cache with evaluating rule by rule.
func checkFlow(t *testing.T, chain *Chain, f *flow) {
	t.Helper()
	x := chain.prepare()
	var m match
	x.match(f, &m)
	if got, want := x.decide(f, &m), chain.scan(f); got != want {
		t.Fatalf("%+v to %+v: index says %+v, chain says %+v", f.peer, f.dst, got, want)
	}
}
