package podwatch

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func TestStripKeepsWhatPolicyNeeds(t *testing.T) {
	in := realisticPod(7)
	now := metav1.Now()
	in.DeletionTimestamp = &now
	untouched := in.DeepCopy()
	got := NewShared().Strip(in)
	want := &compile.Pod{
		Endpoint: policy.Endpoint{Namespace: in.Namespace, Name: in.Name, ID: compile.NewPod(in).Endpoint.ID, Account: "app", Labels: policy.NewLabels(in.Labels), Ports: []policy.NamedPort{
			{Name: "http", Port: 8080, Proto: packet.TCP},
			{Name: "http-metrics", Port: 8081, Proto: packet.TCP},
			{Name: "proxy", Port: 15000, Proto: packet.TCP},
			{Name: "proxy-metrics", Port: 15001, Proto: packet.TCP},
		}},
		UID: in.UID, Node: in.Spec.NodeName, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("fd00::7")},
		Created: in.CreationTimestamp.Unix(), Terminating: true, OwnNetwork: true,
	}
	if diff := difference(want, got); diff != "" {
		t.Errorf("the pod differs (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(untouched, in); diff != "" {
		t.Errorf("the object given was modified (-before +after):\n%s", diff)
	}
}

// difference returns how got differs from want in any field, "" if it does not.
func difference(want, got *compile.Pod) string {
	type fields compile.Pod // without Equal, which leaves some fields out
	return cmp.Diff((*fields)(want), (*fields)(got), cmpopts.EquateComparable(netip.Addr{}), cmpopts.IgnoreUnexported(policy.Chain{}))
}

func share(p *pool[map[string]string], hash uint64, labels map[string]string) map[string]string {
	return p.get(hash,
		func(known map[string]string) bool { return maps.Equal(known, labels) },
		func() map[string]string { return labels })
}

func TestPoolForgetsWhatIsNotAskedFor(t *testing.T) {
	p := newPool[map[string]string]()
	for i := range 5 * poolSize {
		share(p, uint64(i), map[string]string{"n": fmt.Sprint(i)})
	}
	if n := len(p.now) + len(p.old); n > 2*poolSize {
		t.Errorf("the pool holds %d values, want at most %d", n, 2*poolSize)
	}
}

func TestPoolKeepsValuesOfOneHashApart(t *testing.T) {
	p := newPool[map[string]string]()
	a, b := map[string]string{"a": "1"}, map[string]string{"b": "1"}
	for range 2 {
		for _, want := range []map[string]string{a, b} {
			if diff := cmp.Diff(want, share(p, 1, want)); diff != "" {
				t.Errorf("the labels differ (-want +got):\n%s", diff)
			}
		}
	}
}
