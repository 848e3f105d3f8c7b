package flows

import (
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// pkg/agent/enforce BenchmarkRecordFlows has the cost within a decision.
func BenchmarkDecided(b *testing.B) {
	for name, to := range map[string]netip.Addr{"IPv4": db, "IPv6": netip.MustParseAddr("2001:db8::2")} {
		b.Run(name, func(b *testing.B) {
			r := New(Config{Registerer: prometheus.NewRegistry()})
			p, s, at := tcp(to.Prev(), to, 80), clusterOf(2), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				r.Decided(p, &allowed, s, nil, at)
			}
		})
	}
}
