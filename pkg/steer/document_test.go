package steer

import (
	"net/netip"
	"os"
	"regexp"
	"testing"
)

// documentSets is the wish whose table docs/nftables.md shows.
var documentSets = Sets{
	Ingress:       []netip.Addr{v4, v4b, v6, v6b},
	Egress:        []netip.Addr{v4, v6},
	Pods:          []netip.Addr{v4, v4b, v6, v6b},
	IngressRanges: prefixes("10.244.1.0/24", "fd00:10:244:1::/64"),
}

// documentBlocks are the parts of docs/nftables.md fenced as nft: the table
// with the queue statement, and the divert chain with the xtables target.
func documentBlocks(t *testing.T) (table, divert string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/nftables.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```nft\n(.*?)```").FindAllStringSubmatch(string(doc), -1)
	if len(blocks) != 2 {
		t.Fatalf("docs/nftables.md has %d blocks of nft, want 2", len(blocks))
	}
	return blocks[0][1], blocks[1][1]
}

var (
	divertBlock = regexp.MustCompile(`(?s)\tchain divert \{.*?\n\t\}\n`)
	counted     = regexp.MustCompile(`packets \d+ bytes \d+`)
	// nft without the target's library prints its name or, before 1.0.7, nothing.
	untranslated = regexp.MustCompile(`(counter name "steered" )(xt target "NFQUEUE")?\n`)
)

func TestDocumentShowsTheTable(t *testing.T) {
	newNode(t)
	caps, err := Probe(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	table, xtables := documentBlocks(t)
	for _, tt := range []struct {
		divert  Divert
		missing error
		want    string
	}{
		{DivertQueue, caps.Queue, table},
		{DivertXTables, caps.XTables, divertBlock.ReplaceAllLiteralString(table, xtables)},
	} {
		if tt.missing != nil {
			continue
		}
		mustSync(t, newReal(t, func(c *Config) { c.Divert, c.Queues = tt.divert, 4 }), documentSets)
		got := counted.ReplaceAllLiteralString(listTable(t), "packets 0 bytes 0")
		got = untranslated.ReplaceAllString(got, "${1}queue num 100-103 fanout\n")
		if got != tt.want {
			t.Errorf("divert=%v: nft prints\n%s\nand the document has\n%s", tt.divert, got, tt.want)
		}
	}
}
