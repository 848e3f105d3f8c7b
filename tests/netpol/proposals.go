package netpol

// Features of proposals for ClusterNetworkPolicy.
const (
	NPEP127 Feature = "NPEP-127" // ingress from networks and nodes
	NPEP173 Feature = "NPEP-173" // service accounts in subjects and peers
	NPEP182 Feature = "NPEP-182" // groups of networks as peers
	NPEP248 Feature = "NPEP-248" // everything as a peer
)

// Proposals has rules of a ClusterNetworkPolicy with the fields of each proposal. Servers that take them
// have the feature.
var Proposals = map[Feature]string{
	NPEP127: `ingress: [{action: Pass, from: [{networks: [192.0.2.0/24]}, {nodes: {}}]}]`,
	NPEP173: `ingress: [{action: Pass, from: [{serviceAccounts: {namespaceSelector: {}, names: [a]}}]}]`,
	NPEP248: `ingress: [{action: Pass, from: [{all: {}}]}]`,
	NPEP182: `egress: [{action: Pass, to: [{cidrGroups: {names: [a]}}]}]`,
}
