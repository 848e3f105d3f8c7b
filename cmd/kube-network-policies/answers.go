package main

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/pkg/agent/holder"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

// setAnswers sets what --status-bind-address needs: the writer that may ask, by the API server of
// config, and how this agent proves itself, by the key in a file.
func (o *options) setAnswers(ctx context.Context, node string, config *rest.Config, keyFile string) error {
	if o.serve.AnswersBindAddress == "" {
		return nil
	}
	namespace, err := o.Namespace()
	if err != nil {
		return command.FlagError("status-bind-address", o.serve.AnswersBindAddress, "needs the namespace of the status writer (%v)", err)
	}
	coordination, err := apiclient.New(config, nil, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	writer := holder.New(apiclient.Leases(coordination, namespace), klog.LoggerWithName(klog.FromContext(ctx), "holder"))
	access := &httpserver.Access{Client: writer.Check, Named: writer.Named}
	o.serve.AnswersAccess = access
	certificate, err := tlskey.OfAgent(node, keyFile)
	if err != nil {
		// Enforcement does not depend on the key. Who asks this agent learns that it has none.
		klog.FromContext(ctx).Info("This agent cannot prove itself to the status writer and to other agents, and asks none for new pods: the key that an init container makes cannot be read", "err", err)
		if certificate, err = tlskey.SelfSigned(node); err != nil {
			return err
		}
		access.Certificate = httpserver.Fixed(certificate)
		return nil
	}
	o.key, access.Certificate = certificate, httpserver.Fixed(certificate)
	return nil
}
