package clusterwatch

import (
	"fmt"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// PodQuery selects the pods of a node if Node is not empty, else those of a set.
type PodQuery struct {
	Node string
	clusterstate.PodSet
}

// String describes the pods for logs.
func (q PodQuery) String() string {
	var of []string
	for _, part := range []struct{ name, value string }{{"node", q.Node}, {"namespace", q.Namespace}, {"labels", q.Labels}} {
		if part.value != "" {
			of = append(of, fmt.Sprintf("%s %q", part.name, part.value))
		}
	}
	if len(of) == 0 {
		return "all pods"
	}
	return "pods of " + strings.Join(of, ", ")
}
