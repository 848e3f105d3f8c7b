package agent

import (
	"context"
	"net/netip"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/enforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/links"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// TestPodLinks has three pods that an administrator denies their node, two of them by one chain
// of policies, and one that may reach it.
func TestPodLinks(t *testing.T) {
	deny := func() *policy.Chain {
		return &policy.Chain{Rules: []policy.Rule{{Action: policy.Deny, Tier: policy.AdminTier, AnyPeer: true, AnyPort: true}}}
	}
	one, other := deny(), deny()
	addr := netip.MustParseAddr
	a4, a6, b4, c4, free4 := addr("10.0.0.1"), addr("fd00::1"), addr("10.0.0.2"), addr("10.0.0.3"), addr("10.0.0.4")
	a := &policy.Endpoint{Name: "a", Egress: one}
	endpoints := policy.NewEndpoints(map[netip.Addr]*policy.Endpoint{
		a4: a, a6: a, b4: {Name: "b", Egress: one}, c4: {Name: "c", Egress: other}, free4: {Name: "free"},
	})
	s := policy.New(policy.Model{Endpoints: endpoints, Local: policy.NewLocal(endpoints, []netip.Addr{a4, a6, b4, c4, free4})})
	names := map[uint32]string{3: "veth3", 4: "veth4", 5: "cni0"}
	lead := func(index uint32, pair bool, pods ...netip.Addr) links.Lead {
		return links.Lead{Index: index, Name: names[index], Pair: pair, Pods: pods}
	}
	single := func(toHost bool, pod ...netip.Addr) enforce.Behind {
		b := enforce.Behind{Single: true, Pod: pod}
		if toHost {
			b.ToHost = pod[:1]
		}
		return b
	}
	for _, tt := range []struct {
		name  string
		leads []links.Lead
		host  []string
		out   []string // of pods isolated for egress
		want  map[uint32]enforce.Behind

		unknown, shared int
	}{
		{"a pair for each pod", []links.Lead{lead(3, true, a4, a6), lead(4, true, free4)}, []string{"veth3"}, []string{"veth3"},
			map[uint32]enforce.Behind{3: single(true, a4, a6), 4: single(false, free4)}, 2, 0},
		{"a bridge", []links.Lead{lead(5, false, a4, b4, c4, free4, a6)}, []string{"cni0"}, nil,
			map[uint32]enforce.Behind{5: {ToHost: []netip.Addr{a4, c4}}}, 0, 3},
		{"a bridge with one pod, which others may join", []links.Lead{lead(5, false, a4, a6)}, []string{"cni0"}, nil,
			map[uint32]enforce.Behind{5: {ToHost: []netip.Addr{a4}}}, 2, 1},
		{"a pair with a pod that may reach the node, too", []links.Lead{lead(3, true, a4, free4)}, []string{"veth3"}, nil,
			map[uint32]enforce.Behind{3: {Single: true, ToHost: []netip.Addr{a4}}}, 2, 1},
		{"pairs of one pod", []links.Lead{lead(4, true, a4), lead(3, true, a6)}, []string{"veth3", "veth4"}, []string{"veth3", "veth4"},
			map[uint32]enforce.Behind{4: single(true, a4), 3: single(true, a6)}, 2, 0},
		{"no pod that is denied anything", []links.Lead{lead(4, true, free4)}, nil, nil,
			map[uint32]enforce.Behind{4: single(false, free4)}, 3, 0},
		{"a pair of no known pod", []links.Lead{lead(4, true)}, nil, nil, map[uint32]enforce.Behind{4: {Single: true}}, 3, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := map[uint32]enforce.Behind{1: {}, 3: {}, 4: {}, 5: {}}
			for index, b := range tt.want {
				if len(b.Pod) > 0 {
					b.Name = names[index]
				}
				want[index] = b
			}
			var sets steer.Sets
			behind := podLinks(&sets, s, tt.leads, []uint32{1, 3, 4, 5})
			if wantSets := (steer.Sets{HostLinks: tt.host, EgressLinks: tt.out}); !reflect.DeepEqual(sets, wantSets) || !reflect.DeepEqual(behind.Links, want) {
				t.Errorf("got %+v, %v, want %+v, %v", sets, behind.Links, wantSets, want)
			}
			if unknown, shared := linkless(s, tt.leads); unknown != tt.unknown || shared != tt.shared {
				t.Errorf("no interface leads to %d pods, and %d share one, want %d and %d", unknown, shared, tt.unknown, tt.shared)
			}
		})
	}
}

// TestNothingIsKnownWithoutTheCheck: without the source check no interface is read, so no pod
// is behind one.
func TestNothingIsKnownWithoutTheCheck(t *testing.T) {
	pod := []netip.Addr{netip.MustParseAddr("10.244.1.2")}
	behind := func(all *enforce.Interfaces) {
		if all != nil {
			t.Errorf("pods are behind interfaces: %v", all)
		}
	}
	reg := prometheus.NewRegistry()
	s, err := newSources(Config{SourceCheckExempt: []string{"eth*", EveryInterface}}, steer.Capabilities{}, nil, behind, reg, klog.Background())
	if err != nil || s.checked {
		t.Fatalf("checked: %v, %v", s.checked, err)
	}
	sets := steer.Sets{Pods: pod, Egress: pod}
	s.addSets(&sets, administered(pod...))
	if want := (steer.Sets{Pods: pod, Egress: pod}); !reflect.DeepEqual(sets, want) {
		t.Errorf("sets %+v, want %+v", sets, want)
	}
	if _, known := s.links.LeadsToAny(pod); known || s.links.LeadsToPods(pod[0], pod) {
		t.Error("an interface is known to lead to a pod")
	}
	if got := testutil.ToFloat64(s.linkless.WithLabelValues("unknown")); got != 1 {
		t.Errorf("%v pods without an interface, want 1", got)
	}
}

// TestTheFirstSnapshotWaitsForInterfaces: an agent that starts does not publish a snapshot without
// interfaces, which would end the check of sources of an earlier agent.
func TestTheFirstSnapshotWaitsForInterfaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newTestAgent(t, prometheus.NewRegistry())
		a.steering.sources.checked = true // and nothing reads them
		ctx, cancel := context.WithCancel(t.Context())
		began := make(chan struct{})
		go func() {
			defer close(began)
			for _, s := range a.cluster() {
				if s.name == "cluster" {
					return
				}
				if !s.off && s.begin != nil {
					s.begin(ctx)
				}
			}
		}()
		synctest.Wait()
		select {
		case <-began:
			t.Error("the cluster is followed before interfaces are known")
		default:
		}
		cancel()
		<-began
	})
}
