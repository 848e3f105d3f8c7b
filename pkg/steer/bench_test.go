package steer

import (
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/nft"
)

// BenchmarkDiff plans the transaction for one more pod, with an address of each family,
// on a node with many pods that are isolated in both directions.
func BenchmarkDiff(b *testing.B) {
	for _, pods := range []int{110, 1000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			have, want := manyPods(pods).contents(), manyPods(pods+1)
			b.ReportAllocs()
			for b.Loop() {
				tx := &nft.Transaction{}
				planElements(tx, have, want.contents())
				if n := tx.NumOperations(); n != 6 {
					b.Fatalf("%d operations, want 6", n)
				}
			}
		})
	}
}

// manyPods returns sets that isolate n pods in both directions.
func manyPods(n int) (s Sets) {
	for i := range n {
		v4 := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		v6 := netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)})
		s.Pods = append(s.Pods, v4, v6)
	}
	s.Ingress, s.Egress = s.Pods, s.Pods
	s.IngressRanges = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	return s
}
