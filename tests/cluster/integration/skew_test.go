package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/crds"
)

// A definition that is newer than the program allows fields that the program does
// not know: that part of the policy fails closed, and a condition names it.
func TestUnknownFieldIsReported(t *testing.T) {
	plane := newest.start(t)
	k := newKubectl(t, plane.Admin())
	file := must[[]string](t)(crds.V030.Files(t.Context(), crds.Standard))[0]
	text := string(must[[]byte](t)(os.ReadFile(file)))
	// Peers and protocols have one more field.
	for _, known := range []string{"namespaces:", "tcp:"} {
		text = addField(text, known, "zone: {type: string}")
	}
	future := filepath.Join(t.TempDir(), "future.yaml")
	if err := os.WriteFile(future, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	defineFiles(t, plane, future)
	startWriter(t, asAdminWriter(t, plane), adminFlags...)
	for _, p := range []adminPolicy{
		{"cnp", "peer", `ingress: [{action: Accept, from: [{namespaces: {}}, {zone: a}]}]`, unsupported, []string{"spec.ingress[0].from[1]: ", "the rule matches nothing; zone is newer"}},
		{"cnp", "protocol", `ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{zone: a}]}]`, unsupported, []string{"spec.ingress[0].protocols[0]: ", "denies its peers on every port; zone is newer"}},
	} {
		k.apply(p.manifest())
		p.shown(k)
	}
}

// addField writes field before each line that begins a known field, at its depth.
func addField(text, known, field string) string {
	var all strings.Builder
	for line := range strings.Lines(text) {
		if rest := strings.TrimLeft(line, " "); strings.TrimSpace(rest) == known {
			all.WriteString(line[:len(line)-len(rest)] + field + "\n")
		}
		all.WriteString(line)
	}
	return all.String()
}

// A policy that only an older definition accepts stays when a newer one replaces it,
// and can still get conditions.
func TestUpgradeKeepsInvalidPolicies(t *testing.T) {
	plane := newest.start(t)
	k := newKubectl(t, plane.Admin())
	define(t, plane, crds.V015, crds.Experimental)
	k.apply(garbageANP.manifest())
	define(t, plane, crds.V017, crds.Standard)
	// From now on the server would refuse the policy.
	refused := strings.ReplaceAll(garbageANP.manifest(), "name: garbage", "name: late")
	eventually(t, func() string {
		if _, err := k.try(refused, "apply", "--server-side", "--dry-run=server", "-f", "-"); err == nil {
			return "the older definition is still in force"
		}
		return ""
	})
	startWriter(t, asAdminWriter(t, plane), adminFlags...)
	garbageANP.shown(k)
}

// An older definition prunes fields of stored objects. A server that validates the
// whole object at each change then refuses conditions: there are Events instead.
func TestDowngradeRemovesFieldsOfPeers(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		k := newKubectl(t, plane.Admin())
		define(t, plane, crds.V015, crds.Experimental)
		lost := adminPolicy{"anp", "lost", `egress: [{action: Deny, to: [{networks: ["10.0.0.0/8"]}]}]`,
			partial("InvalidPeer"), []string{"spec.egress[0].to[0]: the peer has 0 fields that are known", "denies everything"}}
		k.apply(lost.manifest())
		define(t, plane, crds.V015, crds.Standard)
		eventually(t, func() string {
			if text := k.run("get", "anp", "lost", "-o", "yaml"); strings.Contains(text, "networks") {
				return "the newer definition is still in force"
			}
			return ""
		})
		startWriter(t, asAdminWriter(t, plane), adminFlags...)
		if plane == newest.plane {
			lost.shown(k)
			return
		}
		eventually(t, func() string {
			events := k.run("events", "-n", "default", "--for", "adminnetworkpolicy/lost")
			for _, want := range append(lost.fields, "InvalidPeer") {
				if !strings.Contains(events, want) {
					return fmt.Sprintf("kubectl events does not say %s:\n%s", want, events)
				}
			}
			return ""
		})
	})
}
