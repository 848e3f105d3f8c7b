package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/agent/holder"
	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

// setAnswers sets what --status-bind-address needs: the writer that may ask, by the API server of
// config, and how this agent proves itself, by the key in a file.
func (o *options) setAnswers(ctx context.Context, cfg *agent.Config, config *rest.Config, keyFile string) error {
	if cfg.Answers.BindAddress == "" {
		return nil
	}
	namespace, err := o.Namespace()
	if err != nil {
		return command.FlagError("status-bind-address", cfg.Answers.BindAddress, "needs the namespace of the status writer (%v)", err)
	}
	coordination, err := apiclient.New(config, nil, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	writer := holder.New(apiclient.Leases(coordination, namespace), klog.LoggerWithName(klog.FromContext(ctx), "holder"))
	access := &httpserver.Access{Client: writer.Check, Named: writer.Named}
	cfg.Answers.Access = access
	certificate, err := tlskey.OfAgent(cfg.NodeName, keyFile)
	if err != nil {
		// Enforcement does not depend on the key. Who asks this agent learns that it has none.
		klog.FromContext(ctx).Info("This agent cannot prove itself to the status writer and to other agents, and asks none for new pods: the key that an init container makes cannot be read", "err", err)
		if certificate, err = tlskey.SelfSigned(cfg.NodeName); err != nil {
			return err
		}
		access.Certificate = httpserver.Fixed(certificate)
		return nil
	}
	access.Certificate = httpserver.Fixed(certificate)
	return o.joinAgents(cfg, config, namespace, certificate)
}

// joinAgents lets this agent and those of other nodes ask each other for new pods.
func (o *options) joinAgents(cfg *agent.Config, config *rest.Config, namespace string, certificate *tls.Certificate) error {
	core, err := apiclient.New(config, nil, corev1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(cfg.Answers.BindAddress)
	if err != nil {
		return command.FlagError("status-bind-address", cfg.Answers.BindAddress, "%v", err)
	}
	agents := newpods.NewAgents(apiclient.Pods(core, namespace), cfg.NodeName, certificate.Leaf)
	o.peers = newpods.Peers{Agents: agents, Certificate: certificate, Port: port}
	access := cfg.Answers.Access
	writer := access.Client
	access.Streams = tlskey.IsAgents
	access.Client = func(ctx context.Context, c *x509.Certificate) error {
		if tlskey.IsAgents(c) {
			return agents.Check(ctx, c)
		}
		return writer(ctx, c)
	}
	return nil
}
