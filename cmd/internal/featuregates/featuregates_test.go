package featuregates

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// parse returns the features after args, with all features by default.
func parse(args ...string) (compile.Features, *pflag.FlagSet, error) {
	features := compile.AllFeatures()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlag(fs, &features, "Consequence.")
	err := fs.Parse(args)
	return features, fs, err
}

func TestGates(t *testing.T) {
	for _, tc := range []struct {
		args string
		want func(*compile.Features)
	}{
		{"", func(*compile.Features) {}},
		{"--feature-gates=", func(*compile.Features) {}},
		{"--feature-gates=DomainNames=false", func(f *compile.Features) { f.DomainNames = false }},
		{"--feature-gates=EndPort=false", func(f *compile.Features) { f.EndPort = false }},
		{"--feature-gates=IngressByAddress=true", func(f *compile.Features) { f.IngressByAddress = true }},
		{"--feature-gates=Nodes=false", func(f *compile.Features) { f.Nodes = false }},
		{"--feature-gates=PodNetworkReadiness=true", func(f *compile.Features) { f.PodNetworkReadiness = true }},
		{"--feature-gates=SCTP=false", func(f *compile.Features) { f.SCTP = false }},
		{"--feature-gates=ServiceAccounts=true", func(f *compile.Features) { f.ServiceAccounts = true }},
		{"--feature-gates=SCTP=false,EndPort=0", func(f *compile.Features) { f.SCTP, f.EndPort = false, false }},
		{"--feature-gates=SCTP=false,Nodes=false --feature-gates=SCTP=true", func(f *compile.Features) { f.Nodes = false }},
	} {
		t.Run(tc.args, func(t *testing.T) {
			got, _, err := parse(strings.Fields(tc.args)...)
			want := compile.AllFeatures()
			tc.want(&want)
			if err != nil || got != want {
				t.Errorf("features %+v, %v, want %+v", got, err, want)
			}
		})
	}
}

func TestWrongGates(t *testing.T) {
	for _, tc := range []struct{ value, want string }{
		{"EndPorts=false", `"EndPorts": must be one of CIDRGroups, DomainNames, EndPort, `},
		{"SCTP", `"SCTP": must be NAME=true or NAME=false`},
		{"SCTP=perhaps", `SCTP="perhaps": must be true or false`},
		{"SCTP=false,=true", `"": must be one of`},
	} {
		t.Run(tc.value, func(t *testing.T) {
			if _, _, err := parse("--feature-gates=" + tc.value); err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "--feature-gates") {
				t.Errorf("error %v, want %q and the name of the flag", err, tc.want)
			}
		})
	}
}

func TestUsageHasNamesAndDefaults(t *testing.T) {
	_, fs, _ := parse("--feature-gates=SCTP=false")
	usage := fs.FlagUsages()
	for _, want := range []string{"--feature-gates NAME=true|false,...", "CIDRGroups, DomainNames, EndPort, ", "Consequence.", "(default CIDRGroups=false,DomainNames=true,EndPort=true,"} {
		if !strings.Contains(usage, want) {
			t.Errorf("usage %q, want %q in it", usage, want)
		}
	}
}
