package steer

import (
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
)

// documentSets are the sets whose table docs/nftables.md shows.
var documentSets = Sets{
	Ingress:      []netip.Addr{v4, v4b, v6, v6b},
	Egress:       []netip.Addr{v4, v6},
	ToHost:       []netip.Addr{v4b, v6b},
	Pods:         []netip.Addr{v4, v4b, v6, v6b},
	CheckSources: true,
	Unchecked:    []string{"eth0"},
	Bridges:      []string{"cni0"},
	HostLinks:    []string{"veth3"},
	Forwards:     []Forward{{[]string{"veth5"}, prefixes("10.8.0.0/24", "2001:db8:8::/64")}},
	TunnelPorts:  []uint16{8472},

	TunnelProtocols: []uint8{4, 47},
	IngressRanges:   prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
	ToHostRanges:    prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
	AuditEgress:     []netip.Addr{v4b, v6b},
	Names:           []netip.Addr{v4b, v6b},
	Resolvers:       []netip.AddrPort{netip.MustParseAddrPort("10.244.1.9:53"), netip.MustParseAddrPort("[fd00:10:244:1::9]:53")},
	Owners:          []Owner{{v4, 0x0f3b77e0}, {v4b, 0x5d0c2a11}, {v6, 0x0f3b77e0}, {v6b, 0x5d0c2a11}},
}

// documentBlocks are the parts of docs/nftables.md fenced as nft: the table
// with the queue statement, the chains of EarlyOn, and the chains that differ with
// the xtables target.
func documentBlocks(t *testing.T) (table, early, xtables string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/nftables.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```nft\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) != 3 {
		t.Fatalf("docs/nftables.md has %d blocks of nft, want 3", len(blocks))
	}
	return blocks[0][1], blocks[1][1], blocks[2][1]
}

var (
	overflowBlock = regexp.MustCompile(`(?s)\tchain overflow \{.*?\n\t\}\n`)
	divertBlock   = regexp.MustCompile(`(?s)\tchain divert \{.*?\n\t\}\n`)
	auditBlock    = regexp.MustCompile(`(?s)\tchain audit \{.*?\n\t\}\n`)
	showBlock     = regexp.MustCompile(`(?s)\tchain show \{.*?\n\t\}\n`)
	counted       = regexp.MustCompile(`packets \d+ bytes \d+`)
)

// withXTables replaces the chains of table that differ with the xtables target.
func withXTables(table, xtables string) string {
	for _, block := range []*regexp.Regexp{divertBlock, overflowBlock, auditBlock, showBlock} {
		table = block.ReplaceAllLiteralString(table, block.FindString(xtables))
	}
	return table
}

// translate completes what nft prints without the library of the target (its
// name or, before 1.0.7, nothing) and without /etc/protocols.
func translate(table string) string {
	for _, r := range []struct{ pattern, with string }{
		{`(chain overflow \{\n\t\tct state untracked counter name "untracked"\n\t\tcounter name "steered" )(xt target "NFQUEUE")?\n`, "${1}queue num 7105-7108 fanout\n"},
		{`(counter name "steered" )(xt target "NFQUEUE")?\n`, "${1}queue num 7100-7103 fanout\n"},
		{`(chain audit \{\n\t\tcounter name "audited" )(xt target "NFQUEUE")?\n`, "${1}queue num 7109 bypass\n"},
		{`(chain show \{\n\t\t)(xt target "NFQUEUE")?\n`, "${1}queue num 7104 bypass\n"},
		{`l4proto 17`, "l4proto udp"},
		{`elements = \{ 4, 47 \}`, "elements = { ipencap, gre }"},
		{`l4proto \{ 1, 58 \}`, "l4proto { icmp, ipv6-icmp }"},
		{`l4proto 58`, "l4proto ipv6-icmp"},
		{`(l4proto|protocol|nexthdr) \{ 6, 17 \}`, "$1 { tcp, udp }"},
	} {
		table = regexp.MustCompile(r.pattern).ReplaceAllString(table, r.with)
	}
	return table
}

func TestDocumentShowsTable(t *testing.T) {
	newNode(t)
	caps, err := Probe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	table, early, xtables := documentBlocks(t)
	for _, tt := range []struct {
		divert  Divert
		missing error
		want    string
	}{
		{DivertQueue, caps.Queue, table},
		{DivertXTables, caps.XTables, withXTables(table, xtables)},
	} {
		if tt.missing != nil {
			continue
		}
		show := func(early EarlyUDP) {
			mustSync(t, newReal(t, func(c *Config) {
				c.Divert, c.Queue, c.Queues, c.ObserveQueue, c.EarlyUDP, c.SourceCheck = tt.divert, 7100, 4, 7104, early, true
				c.Share, c.OverflowQueue, c.AuditQueue, c.Holder.Queue = DefaultShare, 7105, 7109, 7110
				c.RememberMark, c.RememberFor = DefaultRememberMark, DefaultRememberFor
			}), documentSets)
		}
		show(EarlyOff)
		if got := translate(counted.ReplaceAllLiteralString(listTable(t), "packets 0 bytes 0")); got != tt.want {
			t.Errorf("divert=%v: nft prints\n%s\nand the document has\n%s", tt.divert, got, tt.want)
		}
		show(EarlyOn)
		if got := translate(listTable(t)); !strings.Contains(got, early) {
			t.Errorf("divert=%v: nft prints\n%s\nand the document has\n%s", tt.divert, got, early)
		}
	}
}
