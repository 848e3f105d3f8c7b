package command

import (
	"context"
	"errors"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver/kubeaccess"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

// MetricsTLS selects how metrics are served: one of the constants, or the folder of the
// certificate, with the files of a kubernetes.io/tls Secret.
type MetricsTLS string

const (
	// TLSOff serves metrics without TLS.
	TLSOff MetricsTLS = "off"
	// TLSSelfSigned serves them with a certificate that the program makes.
	TLSSelfSigned MetricsTLS = "self-signed"
)

// MarshalText implements encoding.TextMarshaler.
func (m MetricsTLS) MarshalText() ([]byte, error) { return []byte(m), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MetricsTLS) UnmarshalText(text []byte) error {
	*m = MetricsTLS(text)
	if *m != TLSOff && *m != TLSSelfSigned && !filepath.IsAbs(string(text)) {
		return errors.New("must be off, self-signed or an absolute path")
	}
	return nil
}

// Access returns the access control for metrics of this host, by the API server of config. It
// is nil if all clients may read them.
func (m MetricsTLS) Access(ctx context.Context, config *rest.Config, host string) (*httpserver.Access, error) {
	if m == TLSOff {
		return nil, nil
	}
	logger := klog.LoggerWithName(klog.FromContext(ctx), "metrics")
	config = rest.CopyConfig(config)
	config.QPS = -1 // the reviewer has limits of its own
	authentication, err := apiclient.New(config, nil, authenticationv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	authorization, err := apiclient.New(config, nil, authorizationv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	metrics := kubeaccess.New(apiclient.TokenReviews(authentication), apiclient.SubjectAccessReviews(authorization), "/metrics", "", logger)
	access := &httpserver.Access{Authorize: func(ctx context.Context, _, token string) error { return metrics.Authorize(ctx, token) }}
	if m == TLSSelfSigned {
		certificate, err := tlskey.SelfSigned(host)
		if err != nil {
			return nil, err
		}
		access.Certificate = httpserver.Fixed(certificate)
		return access, nil
	}
	access.Certificate = httpserver.CertificateFiles(filepath.Join(string(m), "tls.crt"), filepath.Join(string(m), "tls.key"), func(err error, inUse bool) {
		if inUse {
			logger.Error(err, "The changed certificate cannot be read, the previous one stays in use", "metrics-tls", m)
		} else {
			logger.Error(err, "The certificate cannot be read, so metrics are not served until it can", "metrics-tls", m)
		}
	})
	return access, nil
}
