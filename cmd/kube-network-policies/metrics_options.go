package main

import (
	"context"
	"errors"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/flows"
	"sigs.k8s.io/kube-network-policies/pkg/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/httpserver/kubeaccess"
)

// metricsOptions are the flags of who may read the metrics.
type metricsOptions struct {
	secure            bool
	certFile, keyFile string
}

func (o *metricsOptions) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&o.secure, "metrics-secure", o.secure, "serve TLS at --metrics-bind-address, and /metrics only to clients with a bearer token whose user may get /metrics; the API server decides about both. It needs the rights to create tokenreviews and subjectaccessreviews. When false, every client that reaches the address can read the metrics")
	fs.StringVar(&o.certFile, "metrics-tls-cert-file", o.certFile, "with --metrics-secure, `FILE` with the certificate and those that certify it, in PEM; a changed file is read again. Empty makes a self-signed certificate, which clients cannot verify")
	fs.StringVar(&o.keyFile, "metrics-tls-private-key-file", o.keyFile, "`FILE` with the private key of --metrics-tls-cert-file, in PEM")
}

func (o *metricsOptions) validate() error {
	switch {
	case (o.certFile == "") != (o.keyFile == ""):
		return flagError("metrics-tls-cert-file", o.certFile, "needs --metrics-tls-private-key-file, and the other way round (it is %q)", o.keyFile)
	case o.certFile != "" && !o.secure:
		return flagError("metrics-tls-cert-file", o.certFile, "needs --metrics-secure")
	}
	return nil
}

// access returns who may read the metrics of this host, as the API server of config
// decides. It is nil if all may.
func (o *metricsOptions) access(ctx context.Context, config *rest.Config, host string) (*httpserver.Access, error) {
	if !o.secure {
		return nil, nil
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), "metrics")
	config = rest.CopyConfig(config)
	config.QPS = -1 // the reviewer has limits of its own
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	metrics := kubeaccess.New(client, "/metrics", "", logger)
	denials := kubeaccess.New(client, flows.DeniedPath, flows.DeniedAudience, logger)
	access := &httpserver.Access{Authorize: func(ctx context.Context, path, token string) error {
		if path == flows.DeniedPath {
			return denials.Authorize(ctx, token)
		}
		return metrics.Authorize(ctx, token)
	}}
	if o.certFile == "" {
		access.Certificate, err = httpserver.SelfSigned(host)
		return access, err
	}
	access.Certificate, err = httpserver.CertificateFiles(o.certFile, o.keyFile, func(err error) {
		logger.Error(err, "The changed certificate cannot be read, the previous one stays in use")
	})
	if err != nil {
		return nil, errors.Join(flagError("metrics-tls-cert-file", o.certFile, "cannot be used"), err)
	}
	return access, nil
}
