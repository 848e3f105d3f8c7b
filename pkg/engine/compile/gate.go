package compile

import "slices"

// Gate is the name of a feature for users, who enable and disable it with --feature-gates.
type Gate struct {
	Name  string
	Stage Stage
	// Proposal is the number of the proposal that the feature is from, as "NPEP-127". It is empty
	// for features of Kubernetes itself.
	Proposal string
	// Meaning says what the gate is for.
	Meaning string
	// Field returns the field of the feature.
	Field func(*Features) *bool
}

// Stage is how far a feature has come in the API that it belongs to.
type Stage string

// The stages. Features that are only proposed may change or go without notice, so they are disabled
// unless they are asked for. Others can be disabled to test Kubernetes with a provider that lacks
// them.
const (
	Proposed     Stage = "proposed"     // in no release of the API
	Experimental Stage = "experimental" // in the experimental channel of network-policy-api
	Stable       Stage = "stable"       // in every supported release of Kubernetes
)

// Gates is the table of all gates, by name. Those of proposals for policies are in the files named
// after them.
var Gates = []*Gate{
	gateCIDRGroups,
	gateDomainNames,
	gateEndPort,
	gateIngressByAddress,
	gateMatchAll,
	gateNodes,
	gatePodNetworkReadiness,
	gateSCTP,
	gateServiceAccounts,
}

var (
	gateEndPort = &Gate{
		"EndPort", Stable, "", "ranges of ports in NetworkPolicy",
		func(f *Features) *bool { return &f.EndPort },
	}
	gateIngressByAddress = &Gate{
		"IngressByAddress", Proposed, "NPEP-127", "`networks` and `nodes` as peers of ingress in administrators' policies",
		func(f *Features) *bool { return &f.IngressByAddress },
	}
	gateNodes = &Gate{
		"Nodes", Experimental, "NPEP-126", "nodes as peers of administrators' policies",
		func(f *Features) *bool { return &f.Nodes },
	}
	gatePodNetworkReadiness = &Gate{
		"PodNetworkReadiness", Proposed, "KEP-5709", "the readiness gate `kube-network-policies.x-k8s.io/network-ready` of pods, with `--pod-readiness`",
		func(f *Features) *bool { return &f.PodNetworkReadiness },
	}
	gateSCTP = &Gate{
		"SCTP", Stable, "", "protocol SCTP in ports of policies",
		func(f *Features) *bool { return &f.SCTP },
	}
)

// Default reports whether the feature is enabled unless flags say otherwise.
func (g *Gate) Default() bool { return g.Stage != Proposed }

// gates are all needed at once.
type gates []*Gate

// disabled returns the first gate that is disabled, nil if there is none.
func (g gates) disabled(f Features) *Gate {
	if i := slices.IndexFunc(g, func(g *Gate) bool { return !*g.Field(&f) }); i >= 0 {
		return g[i]
	}
	return nil
}

// propose reports whether enabled proposals add the field that needs the gates.
func (g gates) propose(f Features) bool {
	return g.disabled(f) == nil && slices.ContainsFunc(g, func(g *Gate) bool { return g.Stage == Proposed })
}

// needed says that a field needs the gate, and how to enable it.
func (g *Gate) needed() string {
	if g.Stage != Proposed {
		return "the field is switched off by --feature-gates=" + g.Name + "=false"
	}
	return "the field is one of proposal " + g.Proposal + ", and needs --feature-gates=" + g.Name + "=true"
}
