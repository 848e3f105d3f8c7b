package integration

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/crds"
)

// proposals contains the definitions of kinds that are proposed. patches add the fields of proposals.
const (
	proposals = "../../../cmd/kubectl-netpol/apivalidation/crds/proposals/"
	patches   = proposals + "clusternetworkpolicies/*.yaml"
	groups    = proposals + "cidrgroups.yaml"
)

// The patches can be applied to the definition of v0.3.0 in any order, and the server then stores
// their fields.
func TestServersAcceptProposals(t *testing.T) {
	const policy = `{apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: proposed}, spec: {
		tier: Admin, priority: 1, subject: {serviceAccounts: {namespaceSelector: {}, names: [a]}},
		ingress: [{action: Deny, from: [{networks: [192.0.2.0/24]}, {nodes: {}}, {serviceAccounts: {namespaceSelector: {}, names: [a.b]}}, {cidrGroups: {selector: {}}}]}],
		egress: [{action: Deny, to: [{serviceAccounts: {namespaceSelector: {}, names: [a]}}, {cidrGroups: {names: [a]}}]}]}}`
	const group = `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: CIDRGroup, metadata: {name: a}, spec: {cidrs: [192.0.2.0/24]}}`
	plane := newest.start(t)
	files := must[[]string](t)(filepath.Glob(patches))
	if len(files) < 2 {
		t.Fatalf("patches %q", files)
	}
	for range 2 {
		t.Run(filepath.Base(files[0])+" first", func(t *testing.T) {
			k := newKubectl(t, plane.Admin())
			define(t, plane, crds.V030, crds.Standard)
			defineFiles(t, plane, groups)

			for _, file := range files {
				k.run("patch", "crd", "clusternetworkpolicies.policy.networking.k8s.io", "--type=json", "--patch-file="+file)
			}

			k.apply(policy)
			k.apply(group)
		})
		slices.Reverse(files)
	}
}

// With the patch of NPEP-133, which is for the experimental channel, servers refuse domain names outside
// Admin and Accept.
func TestServersRefuseDomainNames(t *testing.T) {
	plane := newest.start(t)
	k := newKubectl(t, plane.Admin())
	define(t, plane, crds.V030, crds.Experimental)
	k.run("patch", "crd", "clusternetworkpolicies.policy.networking.k8s.io", "--type=json", "--patch-file="+proposals+"clusternetworkpolicies/stricter/npep-133.yaml")
	for _, version := range []string{"v1alpha2", "v1beta1"} {
		for _, rule := range [][2]string{{"Admin", "Accept"}, {"Admin", "Deny"}, {"Admin", "Pass"}, {"Baseline", "Accept"}} {
			_, err := k.try(fmt.Sprintf(`{apiVersion: policy.networking.k8s.io/%s, kind: ClusterNetworkPolicy, metadata: {name: names}, spec: {tier: %s, priority: 2, subject: {namespaces: {}},
				egress: [{action: Pass, to: [{namespaces: {}}]}, {action: %s, to: [{domainNames: [example.com]}]}]}}`, version, rule[0], rule[1]), "create", "--dry-run=server", "-f", "-")

			if refused := err != nil && strings.Contains(err.Error(), "domainNames are for the"); refused == (rule == [2]string{"Admin", "Accept"}) || !refused && err != nil {
				t.Errorf("%s %v: got %v", version, rule, err)
			}
		}
	}
}

// define makes a server serve the kinds of a release until the test ends, instead of those of
// another release.
func define(t *testing.T, plane *controlplane.ControlPlane, r crds.Release, c crds.Channel) {
	t.Helper()
	defineFiles(t, plane, must[[]string](t)(r.Files(t.Context(), c))...)
}

func defineFiles(t *testing.T, plane *controlplane.ControlPlane, files ...string) {
	t.Helper()
	k := newKubectl(t, plane.Admin())
	for _, file := range files {
		k.run("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", file)
		k.run("wait", "--for=condition=Established", "-f", file)
	}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { undefineFiles(ctx, k, files...) })
}

// undefine removes the kinds of a release with all their objects.
func undefine(t *testing.T, plane *controlplane.ControlPlane, r crds.Release, c crds.Channel) {
	t.Helper()
	undefineFiles(t.Context(), newKubectl(t, plane.Admin()), must[[]string](t)(r.Files(t.Context(), c))...)
}

func undefineFiles(ctx context.Context, k *kubectl, files ...string) {
	k.t.Helper()
	for _, file := range files {
		must[string](k.t)(k.with(ctx, "", "delete", "--ignore-not-found", "-f", file))
	}
}

// Validation rules of Kubernetes 1.27 have no functions for addresses, so its users cannot
// install later releases.
func TestServersAcceptDefinitions(t *testing.T) {
	for _, tc := range []struct {
		release crds.Release
		servers []*server
	}{
		{crds.V015, releases},
		{crds.V017, []*server{newest}},
		{crds.V020, []*server{newest}},
		{crds.V030, []*server{newest}},
	} {
		for _, channel := range []crds.Channel{crds.Standard, crds.Experimental} {
			t.Run(fmt.Sprint(tc.release, " ", channel), func(t *testing.T) {
				on(t, tc.servers, func(t *testing.T, plane *controlplane.ControlPlane) { define(t, plane, tc.release, channel) })
			})
		}
	}
	k := newKubectl(t, statusOff.start(t).Admin())
	for _, release := range []crds.Release{crds.V017, crds.V020, crds.V030} {
		for _, file := range must[[]string](t)(release.Files(t.Context(), crds.Standard)) {
			if _, err := k.try("", "apply", "--server-side", "-f", file); err == nil || !strings.Contains(err.Error(), "isCIDR") {
				t.Errorf("%s: got %v, want that isCIDR is not known", file, err)
			}
		}
	}
}
