package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/agent/holder"
	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
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
	writer := holder.New(client.CoordinationV1().Leases(namespace), klog.LoggerWithName(klog.FromContext(ctx), "holder"))
	access := &httpserver.Access{Client: writer.Check}
	cfg.Answers.Access = access
	certificate, err := newpods.Certificate(cfg.NodeName, newpods.KeyFile)
	if err != nil {
		// Enforcement does not depend on the key.
		klog.FromContext(ctx).Info("New pods of other nodes are known by their status only: the key that an init container makes cannot be read", "err", err)
		access.Certificate, err = httpserver.SelfSigned(cfg.NodeName)
		if err != nil {
			return err
		}
	} else {
		agents := newpods.NewAgents(client.CoreV1().Pods(namespace), cfg.NodeName, certificate.Leaf)
		cfg.Answers.Agents, cfg.Answers.Certificate = agents, certificate
		access.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }
		access.Client = func(ctx context.Context, c *x509.Certificate) error {
			if newpods.IsAgents(c) {
				return agents.Check(ctx, c)
			}
			return writer.Check(ctx, c)
		}
	}
	cfg.Answers.TokenFile = statusTokenFile
	return nil
}
