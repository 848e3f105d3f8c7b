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
		func(c *Config) {
			c.RememberMark, c.RememberFor, c.BlockMark = DefaultRememberMark, DefaultRememberFor, DefaultRememberMark
		},
		func(c *Config) { c.SCTPPerPacket = true },
		func(c *Config) { c.answers, c.BlockMark = true, DefaultRememberMark },
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
	cfg.Share, cfg.RememberMark, cfg.BlockMark, cfg.answers = DefaultShare, DefaultRememberMark, 0x800, true
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

// typeOf returns the key type of a set of the table.
func typeOf(name string) (rule.Type, bool) {
	all := allSets()
	i := slices.IndexFunc(all, func(s *knftables.Set) bool { return s.Name == name })
	if i < 0 {
		return rule.Type{}, false
	}
	typ, err := rule.ParseType(all[i].Type)
	return typ, err == nil
}

// distinctRules returns each rule of all configurations once.
func distinctRules() []string {
	seen := make(map[string]bool)
	var rules []string
	for _, cfg := range configurations() {
		for _, c := range chains(cfg) {
			for _, r := range c.rules {
				if !seen[r] {
					seen[r] = true
					rules = append(rules, r)
				}
			}
		}
	}
	return rules
}

// The golden files contain the compiled form of each rule of each configuration, and the sets, so that a
// test of pkg/kernel/nft/rule can compare the rules with those of nft.
func TestRulesMatchGoldenFiles(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		t.Skip("the golden files are those of little-endian machines")
	}
	var sets, rules, targets strings.Builder
	for _, s := range allSets() {
		fmt.Fprintln(&sets, declare(s))
	}
	for _, text := range distinctRules() {
		fmt.Fprint(&rules, compiled(t, text, rule.Options{Family: knftables.InetFamily, Set: typeOf}))
		if strings.Contains(text, "queue ") {
			fmt.Fprint(&targets, compiled(t, text, rule.Options{Family: knftables.InetFamily, Set: typeOf, XTables: true}))
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

// compiled returns a rule and, indented, its compiled form.
func compiled(t *testing.T, text string, o rule.Options) string {
	t.Helper()
	r, err := rule.Compile(text, o)
	if err != nil {
		t.Errorf("%s: %v", text, err)
	}
	return text + "\n\t" + strings.ReplaceAll(strings.TrimSuffix(r.String(), "\n"), "\n", "\n\t") + "\n"
}

// All other values of a configuration only change numbers in the rules.
func TestRulesOfExtremeNumbersCompile(t *testing.T) {
	for _, cfg := range configurations() {
		cfg.Queue, cfg.Mark = 65000, 1<<31
		if cfg.shares() {
			cfg.Share, cfg.OverflowQueue = 1, 65100
		}
		if cfg.remembers() {
			cfg.RememberMark, cfg.BlockMark, cfg.RememberFor = 1, 1, 365*24*DefaultRememberFor*120
		}
		for _, c := range chains(cfg) {
			for _, text := range c.rules {
				if _, err := rule.Compile(text, rule.Options{Family: knftables.InetFamily, Set: typeOf}); err != nil {
					t.Errorf("%s: %v", text, err)
				}
			}
		}
	}
}
