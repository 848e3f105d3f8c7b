package agents

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
)

// Config configures what asks all agents for an answer A.
type Config[A any] struct {
	// Client lists and watches the pods of Namespace.
	Client kubernetes.Interface
	// Namespace is the namespace of the agents, and Agents a label selector for them.
	Namespace, Agents string
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
	require(c.Client != nil, "Client is nil")
	require(c.Namespace != "", "Namespace is empty")
	require(c.Agents != "", "Agents is empty")
	require(c.Ask != nil, "Ask is nil")
	require(c.Registerer != nil, "Registerer is nil")
	return errors.Join(errs...)
}
