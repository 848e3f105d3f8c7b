package agent

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// BenchmarkPublish is the cost of a snapshot in which 20 pods of other nodes have changed, as
// with 1,000 changes a second, on a node with 110 pods of both families.
func BenchmarkPublish(b *testing.B) {
	for _, pods := range []int{1000, 100000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			addr := func(pod int) netip.Addr {
				return netip.AddrFrom4([4]byte{10, byte(pod >> 16), byte(pod >> 8), byte(pod)})
			}
			chain := &policy.Chain{Rules: []policy.Rule{{Tier: policy.NetworkPolicyTier, Policy: &policy.Ref{Namespace: "x", Name: "deny"}, AnyPeer: true, AnyPort: true}}}
			endpoints, local := make(map[netip.Addr]*policy.Endpoint), []netip.Addr{}
			for i := range pods {
				endpoints[addr(i)] = &policy.Endpoint{Namespace: "x", Name: fmt.Sprint(i)}
			}
			for i := range 2 * 110 {
				endpoints[addr(i)].Ingress, endpoints[addr(i)].ID = chain, uint32(i+2)
				local = append(local, addr(i))
			}
			m := policy.Model{Endpoints: policy.NewEndpoints(endpoints)}
			m.Local = policy.NewLocal(m.Endpoints, local)
			reg := prometheus.NewRegistry()
			a := newTestAgent(b, reg, noNames{})
			a.publish(b.Context(), policy.New(m), time.Now(), true)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				edit := m.Endpoints.Edit()
				for j := range 20 {
					edit.Set(addr(len(local)+(i*20+j)*7919%(pods-len(local))), &policy.Endpoint{Namespace: "x"})
				}
				m.Endpoints = edit.Done()
				a.publish(b.Context(), policy.New(m), time.Now(), true)
			}
		})
	}
}
