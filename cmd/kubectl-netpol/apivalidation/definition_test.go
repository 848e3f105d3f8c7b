package apivalidation

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

func TestFieldsOfProposals(t *testing.T) {
	const accounts = `serviceAccounts: {namespaceSelector: {}, names: `
	for _, tc := range []struct{ name, from, want string }{
		{"NPEP-127 networks", `[{networks: [192.0.2.0/24, "2001:db8::/32"]}]`, ""},
		{"NPEP-127 nodes", `[{nodes: {matchLabels: {a: b}}}]`, ""},
		{"NPEP-127 host bits", `[{networks: [192.0.2.1/24]}]`, "spec.ingress[0].from[0].networks[0]"},
		{"NPEP-127 one field of a peer", `[{networks: [192.0.2.0/24], nodes: {}}]`, "spec.ingress[0].from[0]"},
		{"NPEP-173 accounts", `[{serviceAccounts: {namespaceSelector: {matchLabels: {a: b}}, names: [default, a.b]}}]`, ""},
		{"NPEP-173 no name", `[{` + accounts + `[]}}]`, "spec.ingress[0].from[0].serviceAccounts.names"},
		{"NPEP-173 not a name", `[{` + accounts + `[A]}}]`, "spec.ingress[0].from[0].serviceAccounts.names[0]"},
		{"NPEP-173 no namespaces", `[{serviceAccounts: {names: [a]}}]`, "spec.ingress[0].from[0].serviceAccounts.namespaceSelector"},
		{"NPEP-173 one field of a peer", `[{` + accounts + `[a]}, namespaces: {}}]`, "spec.ingress[0].from[0]"},
		{"NPEP-173 in all places", `[{namespaces: {}}]}], subject: {` + accounts + `[a]}}, egress: [{action: Deny, to: [{` + accounts + `[a]}}]`, ""},
		{"NPEP-182 names", `[{cidrGroups: {names: [a, b.c]}}]`, ""},
		{"NPEP-182 labels", `[{cidrGroups: {selector: {matchLabels: {a: b}}}}]`, ""},
		{"NPEP-182 no name", `[{cidrGroups: {names: []}}]`, "spec.ingress[0].from[0].cidrGroups.names"},
		{"NPEP-182 not a name", `[{cidrGroups: {names: [A]}}]`, "spec.ingress[0].from[0].cidrGroups.names[0]"},
		{"NPEP-182 neither", `[{cidrGroups: {}}]`, "spec.ingress[0].from[0].cidrGroups"},
		{"NPEP-182 both", `[{cidrGroups: {names: [a], selector: {}}}]`, "spec.ingress[0].from[0].cidrGroups"},
		{"NPEP-182 one field of a peer", `[{cidrGroups: {names: [a]}, networks: [192.0.2.0/24]}]`, "spec.ingress[0].from[0]"},
		{"NPEP-182 destinations", `[{namespaces: {}}]}], egress: [{action: Deny, to: [{cidrGroups: {names: [a]}}]`, ""},
		{"of no proposal", `[{domainNames: [example.com]}]`, "spec.ingress[0].from[0].domainNames"},
	} {
		for _, version := range []string{"v1alpha2", "v1beta1"} {
			t.Run(tc.name+" "+version, func(t *testing.T) {
				var o map[string]any
				text := `{apiVersion: policy.networking.k8s.io/` + version + `, kind: ClusterNetworkPolicy, metadata: {name: p},
					spec: {tier: Admin, priority: 1, ingress: [{action: Deny, from: ` + tc.from + `}]}}`
				if err := yaml.Unmarshal([]byte(text), &o); err != nil {
					t.Fatal(err)
				}
				spec := o["spec"].(map[string]any)
				spec["priority"] = int64(1)
				if spec["subject"] == nil {
					spec["subject"] = map[string]any{"namespaces": map[string]any{}}
				}

				errs := Validate(o)

				refused := slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Field == tc.want })
				if accepted := len(errs) == 0; accepted != (tc.want == "") || !accepted && !refused {
					t.Errorf("got %v, want %q", errs.ToAggregate(), tc.want)
				}
			})
		}
	}
}

func TestCIDRGroups(t *testing.T) {
	for _, tc := range []struct{ name, spec, want string }{
		{"networks", `{cidrs: [192.0.2.0/24, "2001:db8::/32"]}`, ""},
		{"no network", `{}`, ""},
		{"an empty list", `{cidrs: []}`, ""},
		{"host bits", `{cidrs: [192.0.2.1/24]}`, "spec.cidrs[0]"},
		{"no network", `{cidrs: [a]}`, "spec.cidrs[0]"},
		{"one twice", `{cidrs: [192.0.2.0/24, 192.0.2.0/24]}`, "spec.cidrs[1]"},
		{"another field", `{networks: []}`, "spec.networks"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var o map[string]any
			text := `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: CIDRGroup, metadata: {name: g}, spec: ` + tc.spec + `}`
			if err := yaml.Unmarshal([]byte(text), &o); err != nil {
				t.Fatal(err)
			}

			errs := Validate(o)

			refused := slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Field == tc.want })
			if accepted := len(errs) == 0; accepted != (tc.want == "") || !accepted && !refused {
				t.Errorf("got %v, want %q", errs.ToAggregate(), tc.want)
			}
		})
	}
}
