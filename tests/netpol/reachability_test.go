package netpol

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// newReachability has tables over the nine pods of the default model.
func newReachability(model Model) *Reachability {
	return NewReachability(model.State(), model.Traffic())
}

// blocked counts the cells of a table that do not connect.
func blocked(t *TruthTable) int {
	return len(NewTruthTable(t.Pods(), true).Compare(t))
}

func TestExpectationsExemptPodItself(t *testing.T) {
	r := newReachability(Model{})
	r.ExpectAll(false)
	for _, traffic := range r.Traffic() {
		if got, want := blocked(r.Table(traffic)), 72; got != want {
			t.Errorf("%s: %d cells blocked, want %d", traffic, got, want)
		}
	}
}

func TestExpectationsExemptOwnNode(t *testing.T) {
	r := newReachability(Model{HostNetwork: true})
	r.ExpectAllIngress("x/a", false) // runs on node-1
	table := r.Table(r.Traffic()[0])
	if !table.Get("host/node-1", "x/a") || table.Get("host/node-2", "x/a") || table.Get("x/b", "x/a") {
		t.Error(Show(ASCII, Grid{Title: "x/a", Want: table}))
	}
}

func TestForRestrictsTraffic(t *testing.T) {
	r := newReachability(Model{})
	r.For(TCP(80), UDP(0)).ExpectPeer("y/*", "x/[ab]", false)
	for _, traffic := range r.Traffic() {
		want := 6
		if traffic.Protocol == corev1.ProtocolTCP && traffic.Port == 81 {
			want = 0
		}
		if got := blocked(r.Table(traffic)); got != want {
			t.Errorf("%s: %d cells blocked, want %d", traffic, got, want)
		}
	}
	r.For(Traffic{}.Over(corev1.IPv6Protocol)).ExpectAllEgress("z/a", false)

	if got := blocked(r.Table(TCP(81).Over(corev1.IPv6Protocol))); got != 8 {
		t.Errorf("%d cells blocked, want 8", got)
	}
	if got := blocked(r.Table(TCP(81).Over(corev1.IPv4Protocol))); got != 0 {
		t.Errorf("%d cells of the other family blocked", got)
	}
}

func TestUnknownNamesPanic(t *testing.T) {
	for name, f := range map[string]func(r *Reachability){
		"pattern": func(r *Reachability) { r.ExpectPeer("w/*", "x/a", true) },
		"traffic": func(r *Reachability) { r.For(TCP(8080)) },
		"pod":     func(r *Reachability) { r.State().LabelPod("x/none", "a=b") },
		"policy":  func(r *Reachability) { r.State().Withdraw("x/none") },
		"labels":  func(*Reachability) { Pods("a b c") },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f(newReachability(Model{}))
		})
	}
}

func TestStateChangesAreCopies(t *testing.T) {
	before := Model{}.State()
	after := before.Clone()
	after.LabelPod("x/a", "pod=other", "more=yes")
	after.LabelPod("x/a", "more-")
	after.LabelNamespace("x", "ns-")
	after.DeletePod("z/c")
	after.Apply(NewPolicy("x", "p"))

	if got := before.Pod("x/a").Labels["pod"]; got != "a" {
		t.Errorf("the label of the pod before is %q", got)
	}
	if got := before.Namespace("x").Labels["ns"]; got != "x" {
		t.Errorf("the label of the namespace before is %q", got)
	}
	if len(before.Pods) != 9 || len(after.Pods) != 8 || len(before.Policies) != 0 {
		t.Errorf("%d pods before, %d after, %d policies before", len(before.Pods), len(after.Pods), len(before.Policies))
	}
	if _, has := after.Pod("x/a").Labels["more"]; has {
		t.Error("a label was not removed")
	}
}
