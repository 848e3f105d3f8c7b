package main

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/agent/holder"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// statusTokenFile has the token that proves an agent to the status writer. It is where the chart
// mounts the volume.
const statusTokenFile = "/var/run/secrets/kube-network-policies/status-writer/token"

// setAnswers sets what --status-bind-address needs: the writer that may ask, by the API server of
// config, and how this agent proves itself.
func (o *options) setAnswers(ctx context.Context, cfg *agent.Config, config *rest.Config) error {
	if cfg.Answers.BindAddress == "" {
		return nil
	}
	namespace, err := o.namespace()
	if err != nil {
		return flagError("status-bind-address", cfg.Answers.BindAddress, "needs the namespace of the status writer (%v)", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	certificate, err := httpserver.SelfSigned(cfg.NodeName)
	if err != nil {
		return err
	}
	writer := holder.New(client.CoordinationV1().Leases(namespace), klog.LoggerWithName(klog.FromContext(ctx), "holder"))
	cfg.Answers.Access = &httpserver.Access{Certificate: certificate, Client: writer.Check}
	cfg.Answers.TokenFile = statusTokenFile
	return nil
}
