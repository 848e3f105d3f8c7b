package agents

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

// Config configures what asks all agents for an answer A.
type Config[A any] struct {
	// Pods are the pods in the namespace of the agents, and Agents is a label selector for them.
	Pods   apiclient.Source[*corev1.PodList]
	Agents string
	// Nodes are all nodes.
	Nodes apiclient.Source[*corev1.NodeList]
	// Ask returns the answer of the agent of a pod.
	Ask func(context.Context, *corev1.Pod) (*A, error)
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// Validate returns an error that names every invalid field.
func (c Config[A]) Validate() error {
	var errs []error
	require := func(ok bool, fault string) {
		if !ok {
			errs = append(errs, errors.New(fault))
		}
	}
	require(c.Pods != nil, "Pods is nil")
	require(c.Nodes != nil, "Nodes is nil")
	require(c.Agents != "", "Agents is empty")
	require(c.Ask != nil, "Ask is nil")
	require(c.Registerer != nil, "Registerer is nil")
	return errors.Join(errs...)
}
