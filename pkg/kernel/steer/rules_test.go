package steer

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/ruletest"
)

// configurations returns all configurations whose tables differ in more than numbers.
func configurations() []Config {
	choices := []func(*Config){
		func(c *Config) { c.Queues = 1 },
		func(c *Config) { c.Bypass = true },
		func(c *Config) { c.Share, c.OverflowQueue = DefaultShare, 105 },
		func(c *Config) { c.AuditQueue = 110 },
		func(c *Config) { c.ObserveQueue = 104 },
		func(c *Config) { c.EarlyUDP = EarlyOn },
		func(c *Config) { c.SourceCheck = true },
		remembering,
		func(c *Config) { c.SCTPPerPacket = true },
		func(c *Config) { c.answers = true },
	}
	all := []Config{testConfig()}
	for _, choose := range choices {
		for _, c := range all {
			choose(&c)
			all = append(all, c)
		}
	}
	return all
}

// allSets returns the sets that a table can have.
func allSets() []*knftables.Set {
	cfg := testConfig()
	cfg.Share, cfg.answers = DefaultShare, true
	remembering(&cfg)
	sets := tableSets(cfg)
	slices.SortFunc(sets, func(a, b *knftables.Set) int { return strings.Compare(a.Name, b.Name) })
	return sets
}

// declare returns the declaration of a set in the syntax of nft.
func declare(s *knftables.Set) string {
	text := fmt.Sprintf("set %s { type %s;", s.Name, s.Type)
	if len(s.Flags) > 0 {
		text += " flags"
		for i, f := range s.Flags {
			text += strings.Repeat(",", min(i, 1)) + " " + string(f)
		}
		text += ";"
	}
	if s.Timeout != nil {
		text += fmt.Sprintf(" timeout %ds;", int(s.Timeout.Seconds()))
	}
	if s.Size != nil {
		text += fmt.Sprintf(" size %d;", *s.Size)
	}
	return text + " }"
}

// distinctRules returns each rule of all configurations once.
func distinctRules() []rule.Rule {
	seen := make(map[string]bool)
	var rules []rule.Rule
	for _, cfg := range configurations() {
		for _, c := range chains(cfg) {
			for _, r := range c.rules {
				if text := r.String(); !seen[text] {
					seen[text] = true
					rules = append(rules, r)
				}
			}
		}
	}
	return rules
}

// The golden files contain the expressions of each rule of each configuration, and the sets, so that a test
// of pkg/kernel/nft/rule can compare the expressions with those of nft.
func TestRulesMatchGoldenFiles(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		t.Skip("the golden files are those of little-endian machines")
	}
	var sets, rules, targets strings.Builder
	for _, s := range allSets() {
		fmt.Fprintln(&sets, declare(s))
	}
	for _, r := range distinctRules() {
		fmt.Fprint(&rules, dump(r, rule.Options{FirstSet: 1}))
		if strings.Contains(r.String(), "queue ") {
			fmt.Fprint(&targets, dump(r, rule.Options{XTables: true}))
		}
	}
	for file, got := range map[string]string{
		"testdata/rules.golden":         sets.String() + rules.String(),
		"testdata/rules-xtables.golden": targets.String(),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// dump returns a rule and, indented, its expressions.
func dump(r rule.Rule, o rule.Options) string {
	return r.String() + "\n\t" + strings.ReplaceAll(strings.TrimSuffix(ruletest.Dump(r.Encode(o)), "\n"), "\n", "\n\t") + "\n"
}
