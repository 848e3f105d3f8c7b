package steer

import (
	"maps"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
)

// documentSets are the sets of the table in docs/nftables.md.
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
	Observed:        []netip.Addr{v4b, v6b},
	Servers:         []netip.AddrPort{netip.MustParseAddrPort("10.244.1.9:53"), netip.MustParseAddrPort("[fd00:10:244:1::9]:53")},
	Owners:          []Owner{{v4, 0x0f3b77e0}, {v4b, 0x5d0c2a11}, {v6, 0x0f3b77e0}, {v6b, 0x5d0c2a11}},
}

const document = "../../../docs/nftables.md"

var (
	documentBlocks = regexp.MustCompile("(?s)```nft\n.*?```")
	chainBlock     = regexp.MustCompile(`(?s)\tchain ([a-z-]+) \{\n.*?\n\t\}\n`)
	object         = regexp.MustCompile(`(?m)^\t(?:set|counter) ([a-z0-9-]+?)(-[0-9])?(-v[46])? \{$`)
)

// chainsOf returns the chains of a listing by name.
func chainsOf(listing string) map[string]string {
	found := map[string]string{}
	for _, m := range chainBlock.FindAllStringSubmatch(listing, -1) {
		found[m[1]] = m[0]
	}
	return found
}

// withoutIPv6 omits IPv6 rules that have an IPv4 counterpart in the same chain, like the document.
func withoutIPv6(chain string) string {
	asIPv4 := strings.NewReplacer("ip6 ", "ip ", "-v6", "-v4", "nexthdr", "protocol")
	var shown strings.Builder
	for line := range strings.Lines(chain) {
		if ipv4 := asIPv4.Replace(line); ipv4 == line || !strings.Contains(chain, ipv4) {
			shown.WriteString(line)
		}
	}
	return shown.String()
}

// asDocumented converts a listing to one with the queue statement and with /etc/protocols. Instead of
// the xtables target nft prints its options, its name or, before 1.0.7, nothing, depending on the
// installed libraries.
func asDocumented(listing string) string {
	for _, r := range []struct{ pattern, with string }{
		{`(chain divert \{\n.*\n.*"steered" )(queue .*|xt .*)?\n`, "${1}queue flags fanout to 7100-7103\n"},
		{`(chain overflow \{\n.*\n.*"steered" )(queue .*|xt .*)?\n`, "${1}queue flags fanout to 7105-7108\n"},
		{`(chain audit \{\n.*"audited" )(queue .*|xt .*)?\n`, "${1}queue flags bypass to 7109\n"},
		{`(chain show \{\n\t\t)(queue .*|xt .*)?\n`, "${1}queue flags bypass to 7104\n"},
		{`l4proto 17`, "l4proto udp"},
		{`l4proto 132`, "l4proto sctp"},
		{`l4proto \{ 1, 58 \}`, "l4proto { icmp, ipv6-icmp }"},
		{`l4proto 58`, "l4proto ipv6-icmp"},
		{`(l4proto|protocol|nexthdr) \{ 6, 17 \}`, "$1 { tcp, udp }"},
	} {
		listing = regexp.MustCompile(r.pattern).ReplaceAllString(listing, r.with)
	}
	return listing
}

// The document shows chains of the table as nft prints them, and names the other chains, the sets and
// the counters. The flag -update updates the rules; add new chains by hand.
func TestDocumentShowsTable(t *testing.T) {
	newNode(t)
	caps, err := Probe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		divert  Divert
		missing error
	}{
		{DivertQueue, caps.Queue},
		{DivertXTables, caps.XTables},
	} {
		if tt.missing != nil {
			continue
		}
		list := func(early EarlyUDP) string {
			mustSync(t, newReal(t, func(c *Config) {
				c.Divert, c.Queue, c.Queues, c.ObserveQueue, c.EarlyUDP, c.SourceCheck = tt.divert, 7100, 4, 7104, early, true
				c.Share, c.OverflowQueue, c.AuditQueue, c.Holder.Queue = DefaultShare, 7105, 7109, 7110
				remembering(c)
			}), documentSets)
			return asDocumented(listTable(t))
		}
		chains := chainsOf(list(EarlyOn))
		listing := list(EarlyOff)
		maps.Copy(chains, chainsOf(listing)) // chains that EarlyOn extends are shown without the extension
		compareWithDocument(t, chains, object.FindAllStringSubmatch(listing, -1))
	}
}

func compareWithDocument(t *testing.T, chains map[string]string, objects [][]string) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		text = documentBlocks.ReplaceAllFunc(text, func(block []byte) []byte {
			return chainBlock.ReplaceAllFunc(block, func(chain []byte) []byte {
				return []byte(withoutIPv6(chains[string(chainBlock.FindSubmatch(chain)[1])]))
			})
		})
		if err := os.WriteFile(document, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	shown := chainsOf(strings.Join(documentBlocks.FindAllString(string(text), -1), ""))
	for name, chain := range chains {
		got, ok := shown[name]
		delete(shown, name)
		want := withoutIPv6(chain)
		switch {
		case !ok && !strings.Contains(string(text), "`"+name+"`"):
			t.Errorf("the document neither shows nor names the chain %s", name)
		case ok && got != want:
			t.Errorf("nft prints\n%s\nand the document has\n%s", want, got)
		}
	}
	for name := range shown {
		t.Errorf("the document has the chain %s, which does not exist", name)
	}
	for _, m := range objects {
		if !strings.Contains(string(text), "`"+m[1]) {
			t.Errorf("the document does not name %s", m[1])
		}
	}
}
