package steer

import (
	"net/netip"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer/steertest"
)

func auditing(c *Config) { c.AuditQueue = 109 }

// Packets that only audited policies select go only to the audit queue, which fails open.
func TestAuditedPackets(t *testing.T) {
	const none, decides, audits = "", "to 100-103", "flags bypass to 109"
	s, fake := newFake(t, auditing)
	mustSync(t, s, Sets{
		Ingress:      []netip.Addr{v4, v6},
		AuditIngress: []netip.Addr{v4b, v6b}, AuditEgress: []netip.Addr{v4, v6}, AuditToHost: []netip.Addr{v4, v6},
	})
	oneWay(t, fake, pkt(peer4, v4))
	for _, tt := range []struct {
		name   string
		packet steertest.Packet
		want   string // end of the statement that queues the packet
	}{
		{"to an audited pod", pkt(peer4, v4b), audits},
		{"to an audited pod", pkt(peer6, v6b), audits},
		{"from an audited pod", pkt(v4, peer4), audits},
		{"from an audited pod", pkt(v6, peer6), audits},
		{"between audited pods", pkt(v4, v4b), audits},
		{"to an enforced pod", pkt(peer4, v4), decides},
		{"to an enforced pod", pkt(peer6, v6), decides},
		{"from an audited pod to an enforced one", pkt(v6, v6), decides},
		{"the direction that is not audited", pkt(v4b, peer4), none},
		{"the node's own", pkt(peer4, v4b, fromNode), none},
		{"the node's own address from outside", pkt(peer4, v4b, fromNode, forwarded), audits},
		{"established", pkt(peer4, v4b, state(steertest.Established)), none},
		{"accepted before", pkt(peer4, v4, marked(0, DefaultMark), confirmed), none},
		{"to the node", pkt(v4, peer4, toHost), audits},
		{"to the node", pkt(v6, peer6, toHost), audits},
		{"to the node, not audited", pkt(v4b, peer4, toHost), none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			queued := none
			_, err := steertest.Trace(fake, tt.packet, func(p steertest.Packet, statement string) (steertest.Verdict, uint32) {
				queued = statement
				return accept, p.Mark
			})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(queued, tt.want) || (queued == none) != (tt.want == none) {
				t.Errorf("%+v: queued by %q, want %q", tt.packet, queued, tt.want)
			}
		})
	}
}

func TestAuditQueueIsItsOwn(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"queue of first packets", func(c *Config) { c.AuditQueue = 103 }, "AuditQueue 103 is one of the other queues"},
		{"observe queue", func(c *Config) { c.AuditQueue, c.ObserveQueue = 104, 104 }, "AuditQueue 104 is one of the other queues"},
		{"overflow queue", func(c *Config) { c.AuditQueue, c.Share, c.OverflowQueue = 108, 1, 105 }, "AuditQueue 108 is one of the other queues"},
		{"its own", func(c *Config) { c.AuditQueue, c.Share, c.OverflowQueue = 109, 1, 105 }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := testConfig()
			tt.edit(&cfg)
			got := ""
			if err := cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("error %q, want %q", got, tt.want)
			}
		})
	}
}
