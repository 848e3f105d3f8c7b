package integration

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/crds"
)

// The definition of ClusterNetworkPolicy is replaced by that of the next release, and back, while
// agent and status writer run. Every snapshot has all policies of the server, and conditions are
// written in a served version.
func TestDefinitionsAreReplaced(t *testing.T) {
	plane := newest.start(t)
	installAdmin(t, plane)
	s := newShop(t, plane)
	k := newKubectl(t, plane.Admin())
	config, _ := account(t, plane, namespace, agent)
	v := newViewOf(t, config, s.node, allKinds)
	startWriter(t, asAdminWriter(t, plane), adminFlags...)
	v.eventually(s.guarded()...)
	forget := func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.claims = nil
	}
	defer forget()

	subject := func(app string) string {
		return fmt.Sprintf("subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}, podSelector: {matchLabels: {app: %s}}}}", s.namespace, app)
	}
	// keeps applies a policy of a release that denies a port, and requires it in every
	// snapshot from then on.
	keeps := func(r crds.Release, name string, number uint16) {
		t.Helper()
		k := newKubectl(t, plane.Admin()) // which remembers what is served
		p := adminPolicy{"cnp", name, fmt.Sprintf("%s, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: %d}}}]}]", subject("client"), number), clean, nil}
		k.apply(r.Versioned(p.manifest()))
		v.eventually(denied(s.visitor, s.client, number))
		v.always(denied(s.visitor, s.client, number))
		p.shown(k)
	}
	// Servers refuse the block since v0.3.0.
	stored := adminPolicy{"cnp", "stored", subject("client") + fmt.Sprintf(", egress: [{action: Deny, to: [{networks: [%s/31]}]}]", s.address(103)), partial("InvalidCIDR"), []string{"spec.egress[0].to[0].networks[0]: "}}
	toVisitor := denied(s.client, s.visitor, 1)

	define(t, plane, crds.V020, crds.Standard)
	keeps(crds.V020, "before", 101)
	k.apply(crds.V020.Versioned(stored.manifest()))
	v.eventually(toVisitor)
	v.always(toVisitor)
	stored.shown(k)

	define(t, plane, crds.V030, crds.Standard)
	keeps(crds.V030, "upgraded", 102)
	keeps(crds.V020, "upgraded-old", 103)
	stored.shown(newKubectl(t, plane.Admin()))
	if _, err := k.try(strings.ReplaceAll(stored.manifest(), "name: stored", "name: late"), "apply", "--server-side", "--dry-run=server", "-f", "-"); err == nil || !strings.Contains(err.Error(), "Invalid CIDR") {
		t.Errorf("the server answers %v to host bits", err)
	}
	const definition = "clusternetworkpolicies.policy.networking.k8s.io"
	patch := func(subresource, kind, text string) {
		t.Helper()
		args := []string{"patch", "crd", definition, "--type=" + kind, "-p", text}
		if subresource != "" {
			args = append(args, "--subresource="+subresource)
		}
		k.run(args...)
	}
	// serve sets which versions are served and stored: v1alpha2 and v1beta1, in the order of the release.
	serve := func(old, new bool, stored string) {
		t.Helper()
		patch("", "json", fmt.Sprintf(`[{"op":"replace","path":"/spec/versions/0/served","value":%t},{"op":"replace","path":"/spec/versions/1/served","value":%t},`+
			`{"op":"replace","path":"/spec/versions/0/storage","value":%t},{"op":"replace","path":"/spec/versions/1/storage","value":%t}]`,
			old, new, stored == "v1alpha2", stored == "v1beta1"))
	}
	serve(false, true, "v1beta1")
	keeps(crds.V030, "only-new", 104)
	serve(true, false, "v1beta1")
	keeps(crds.V020, "only-old", 105)

	// A definition that serves neither version that is read: nothing is forgotten, and the plugin
	// says what to do.
	patch("", "json", `[{"op":"copy","from":"/spec/versions/1","path":"/spec/versions/2"},{"op":"replace","path":"/spec/versions/2/name","value":"v1"},`+
		`{"op":"replace","path":"/spec/versions/2/storage","value":false},{"op":"replace","path":"/spec/versions/2/served","value":true}]`)
	serve(false, false, "v1beta1")
	eventually(t, func() string {
		const want = "are served in version v1 only, and read in v1beta1 or v1alpha2: install"
		if _, _, stderr := runNetpol(t, plane.Admin(), "check"); !strings.Contains(stderr, want) {
			return fmt.Sprintf("kubectl netpol says %q, want %q", stderr, want)
		}
		return ""
	})
	serve(true, true, "v1beta1")
	patch("", "json", `[{"op":"remove","path":"/spec/versions/2"}]`)
	keeps(crds.V030, "known-again", 108)

	// The way back, with the steps of an administrator.
	serve(true, true, "v1alpha2")
	k.run("annotate", "cnp", "--all", "rewritten=true")
	patch("status", "merge", `{"status":{"storedVersions":["v1alpha2"]}}`)
	define(t, plane, crds.V020, crds.Standard)
	keeps(crds.V020, "downgraded", 106)

	forget() // the objects go with the definition
	undefine(t, plane, crds.V020, crds.Standard)
	v.eventually(append(s.guarded(), claim{s.visitor, s.client, 101, policy.Allow}, claim{s.client, s.visitor, 1, policy.Allow})...)
	define(t, plane, crds.V030, crds.Standard)
	keeps(crds.V030, "again", 107)
}
