package compile

// Gate is the name of a feature for users, who enable and disable it with --feature-gates.
type Gate struct {
	Name  string
	Stage Stage
	// Proposal is the number of the proposal that the feature is from, as "NPEP-127". It is empty
	// for features of Kubernetes itself.
	Proposal string
	// Meaning says what the gate is for.
	Meaning string
	// Adds are the fields that the proposal adds to a kind, as paths without indices.
	Adds []string
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

// Gates is the table of all gates, by name.
var Gates = []*Gate{
	gateCIDRGroups,
	gateDomainNames,
	gateEndPort,
	gateIngressByAddress,
	gateNodes,
	gatePodNetworkReadiness,
	gateSCTP,
	gateServiceAccounts,
}

var (
	gateCIDRGroups = &Gate{
		"CIDRGroups", Proposed, "NPEP-182", "`cidrGroups`, named sets of networks, as peers of administrators' policies",
		[]string{"spec.ingress.from.cidrGroups", "spec.egress.to.cidrGroups"},
		func(f *Features) *bool { return &f.CIDRGroups },
	}
	gateDomainNames = &Gate{
		"DomainNames", Experimental, "NPEP-133", "domain names as peers of administrators' policies", nil,
		func(f *Features) *bool { return &f.DomainNames },
	}
	gateEndPort = &Gate{
		"EndPort", Stable, "", "ranges of ports in NetworkPolicy", nil,
		func(f *Features) *bool { return &f.EndPort },
	}
	gateIngressByAddress = &Gate{
		"IngressByAddress", Proposed, "NPEP-127", "`networks` and `nodes` as peers of ingress in administrators' policies",
		[]string{"spec.ingress.from.networks", "spec.ingress.from.nodes"},
		func(f *Features) *bool { return &f.IngressByAddress },
	}
	gateNodes = &Gate{
		"Nodes", Experimental, "NPEP-126", "nodes as peers of administrators' policies", nil,
		func(f *Features) *bool { return &f.Nodes },
	}
	gatePodNetworkReadiness = &Gate{
		"PodNetworkReadiness", Proposed, "KEP-5709", "the readiness gate `kube-network-policies.x-k8s.io/network-ready` of pods, with `--pod-readiness`", nil,
		func(f *Features) *bool { return &f.PodNetworkReadiness },
	}
	gateSCTP = &Gate{
		"SCTP", Stable, "", "protocol SCTP in ports of policies", nil,
		func(f *Features) *bool { return &f.SCTP },
	}
	gateServiceAccounts = &Gate{
		"ServiceAccounts", Proposed, "NPEP-173", "`serviceAccounts` in subjects and peers of administrators' policies",
		[]string{"spec.subject.serviceAccounts", "spec.ingress.from.serviceAccounts", "spec.egress.to.serviceAccounts"},
		func(f *Features) *bool { return &f.ServiceAccounts },
	}
)

// Default reports whether the feature is enabled unless flags say otherwise.
func (g *Gate) Default() bool { return g.Stage != Proposed }

// Adds returns the fields that enabled proposals add to the kind, as Gate.Adds.
func (k *Kind) Adds(f Features) []string {
	var fields []string
	for _, g := range k.Proposals {
		if *g.Field(&f) {
			fields = append(fields, g.Adds...)
		}
	}
	return fields
}

// needed says that a field needs the gate, and how to enable it.
func (g *Gate) needed() string {
	if g.Stage != Proposed {
		return "the field is switched off by --feature-gates=" + g.Name + "=false"
	}
	return "the field is one of proposal " + g.Proposal + ", and needs --feature-gates=" + g.Name + "=true"
}
