package property

import (
	"fmt"
	"net/netip"
	"testing"

	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// TestPastDisagreements has minimal clusters in which evaluator and oracle once disagreed about a
// packet to an address in the node's ranges without a known pod. A rule that passes pods and
// networks was compiled into two rules, with the one for pods first. So the sender's egress
// depended on whether the destination is a pod, although the rule matches its address in either
// case (CN-35).
func TestPastDisagreements(t *testing.T) {
	const nodeAndPod = `
Nodes: [{metadata: {name: here}, spec: {podCIDRs: ["fd00:1::/64", 10.1.0.0/24]}}]
Namespaces: [{metadata: {name: n2}}]
Pods: [{metadata: {name: p, namespace: n2}, spec: {nodeName: here}, status: {podIPs: [{ip: "fd00:2::2"}, {ip: 10.2.0.4}]}}]
`
	const baseline6 = `
ClusterNetworkPolicies:
- metadata: {name: p0}
  spec: {tier: Baseline, priority: 1, subject: {pods: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
- metadata: {name: p1}
  spec: {tier: Baseline, priority: 0, subject: {pods: {}}, egress: [{action: Pass, to: [{namespaces: {}}, {networks: ["fd00:1::/64"]}], protocols: [%s]}]}
`
	const admin4 = `
NetworkPolicies: [{metadata: {name: np0, namespace: n2}, spec: {policyTypes: [Ingress, Egress], egress: [{}]}}]
ClusterNetworkPolicies:
- metadata: {name: p1}
  spec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Pass, to: [{namespaces: {}}, {networks: [10.1.0.0/24]}], protocols: [%s]}]}
`
	const (
		udp   = "{udp: {destinationPort: {range: {start: 1, end: 81}}}}"
		named = ", {destinationNamedPort: adm}"

		allowedOut = "egress allowed, ingress denied"
		deniedOut  = "egress denied, ingress denied"
	)
	for _, tc := range []struct {
		name, cluster, src, dst string
		want                    string
	}{
		// Seed 13043964403359885339.
		{"Pass in the baseline tier", fmt.Sprintf(baseline6, udp), "fd00:2::2", "fd00:1::4", allowedOut},
		{"Pass with a named port in the baseline tier", fmt.Sprintf(baseline6, udp+named), "fd00:2::2", "fd00:1::4", deniedOut},
		// Seed 8193503906538744289.
		{"Pass in the admin tier", fmt.Sprintf(admin4, udp), "10.2.0.4", "10.1.0.6", allowedOut},
		{"Pass with a named port in the admin tier", fmt.Sprintf(admin4, udp+named), "10.2.0.4", "10.1.0.6", deniedOut},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := oracle.Cluster{EndPort: true, SCTP: true, NodePeers: true, DomainNames: true, IngressByAddress: true, ServiceAccounts: true, GroupPeers: true}
			if err := yaml.Unmarshal([]byte(nodeAndPod+tc.cluster), &c); err != nil {
				t.Fatal(err)
			}
			q := question{Packet: packet.Packet{
				Src: netip.AddrPortFrom(netip.MustParseAddr(tc.src), 40000), Dst: netip.AddrPortFrom(netip.MustParseAddr(tc.dst), 53), Proto: packet.UDP,
			}}
			got, want, _ := decisions(c, clusterstate.Compile(input(c)), q)
			if outcome := fmt.Sprintf("egress %v, ingress %v", want.Egress.Outcome, want.Ingress.Outcome); outcome != tc.want {
				t.Errorf("the oracle says %v, want %s", want, tc.want)
			}
			if disagreement(got, want) != "" {
				t.Error(explain(c, q))
			}
		})
	}
}
