package scenarios_test

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
)

// Programs choose scenarios by name, by statement, or by what they need.
func ExampleAll() {
	about := slices.DeleteFunc(scenarios.All(), func(s netpol.Scenario) bool { return !strings.HasPrefix(s.Name, "default deny of ingress") })
	for _, s := range about {
		fmt.Println(s.Name, s.Statements)
	}
	// Output:
	// default deny of ingress to a namespace [NP-1 NP-6 NP-7]
}
