package bridgefilter

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/ruletest"
)

var update = flag.Bool("update", false, "update the golden files")

// The golden file contains the expressions of each rule. A test of pkg/kernel/nft/rule compares them with
// those of nft.
func TestRulesMatchGoldenFile(t *testing.T) {
	fake := knftables.NewFake(knftables.BridgeFamily, TableName)
	tx := fake.NewTransaction()
	plan(state{filters: true, otherPorts: []string{"vnet0"}}).Replay(tx)
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, set := range fake.Table.Sets {
		fmt.Fprintf(&got, "set %s { type %s; }\n", set.Name, set.Type)
	}
	encoded := framesRule.Encode(rule.Options{FirstSet: 1})
	for _, r := range fake.Table.Chains[preroutingChain].Rules {
		fmt.Fprintf(&got, "%s\n\t%s\n", r.Rule, strings.ReplaceAll(strings.TrimSuffix(ruletest.Dump(encoded), "\n"), "\n", "\n\t"))
	}
	const file = "testdata/rules.golden"
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}
