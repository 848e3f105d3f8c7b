package netns

import (
	"net/netip"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// agentWithoutModules builds an agent without modules, except for the one that reads manifests.
func agentWithoutModules(t *testing.T) string {
	t.Helper()
	const declared = "func modules(o *options) []module.Module {\n"
	return overlaidAgent(t, map[string][2]string{"cmd/kube-network-policies/modules.go": {declared,
		declared + "\tall(o)\n\treturn []module.Module{o.manifests()}\n}\n\nfunc all(o *options) []module.Module {\n"}})
}

// TestModulesChangeNoVerdict: an agent without modules enforces the same as one with all of them, also after a
// change and for connections that exist.
func TestModulesChangeNoVerdict(t *testing.T) {
	for name, binary := range map[string]string{"all": labtest.AgentBinary, "none": agentWithoutModules(t)} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
			c.Apply(t, "policies", onlyDB)
			c.startAgent(t, lab.AgentConfig{Binary: binary, Manifests: c.Manifests.Dir()})
			c.waitSteered(t, "x/web")
			c.Expect(t, labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("x/web", "y/db", "udp/81"))
			web := c.Hosts["x/web"]
			established := c.openPair(t, "y/db", listenOn(t, web, 7000), netip.AddrPortFrom(web.Addr(lab.IPv6), 7000))
			c.Replace(t, "policies", labtest.Policy("x", "closed", "{podSelector: {}, policyTypes: [Ingress, Egress]}"))
			c.Expect(t, labtest.No("y/db", "x/web", "tcp/80"), labtest.No("x/web", "y/db", "udp/81"), labtest.Yes("y/web", "y/db", "tcp/80"))
			established.send(t, "denied")
			established.silent(t)
		})
	}
}
