package scenarios

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Profiles are the names that Profile accepts.
var Profiles = []string{"all", "kubernetes", "network-policy-api"}

// kubernetesSpecs names, below each spec of Kubernetes, the scenarios that contain it.
//
//go:embed testdata/kubernetes-specs.txt
var kubernetesSpecs string

// Profile returns the scenarios of a profile: kubernetes has what Kubernetes' own specs of network
// policies contain, network-policy-api the administrators' policies of the released API.
func Profile(name string) ([]netpol.Scenario, error) {
	var keep func(netpol.Scenario) bool
	switch name {
	case "all":
		return All(), nil
	case "kubernetes":
		keep = func(s netpol.Scenario) bool { return strings.Contains(kubernetesSpecs, "\n\t"+s.Name+"\n") }
	case "network-policy-api":
		keep = isOfNetworkPolicyAPI
	default:
		return nil, fmt.Errorf("profile %q: want one of %s", name, strings.Join(Profiles, ", "))
	}
	return slices.DeleteFunc(All(), func(s netpol.Scenario) bool { return !keep(s) }), nil
}

func isOfNetworkPolicyAPI(s netpol.Scenario) bool {
	needs := func(features ...netpol.Feature) bool {
		return slices.ContainsFunc(features, func(f netpol.Feature) bool { return slices.Contains(s.Needs, f) })
	}
	return needs(netpol.AdminNetworkPolicies, netpol.ClusterNetworkPolicies) && !needs(slices.Collect(maps.Keys(netpol.Proposals))...)
}
