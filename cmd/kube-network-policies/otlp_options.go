package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/common/version"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/otlp"
)

// maxOTLPInterval keeps the series of a collector alive.
const maxOTLPInterval = time.Hour

// otlpOptions are the flags about the export of flows to an OpenTelemetry collector.
type otlpOptions struct {
	endpoint string
	caFile   string
	interval time.Duration
}

func newOTLPOptions() otlpOptions { return otlpOptions{interval: otlp.DefaultInterval} }

func (o *otlpOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.endpoint, "otlp-endpoint", o.endpoint, "`URL` of an OpenTelemetry collector that receives records of flows, as OTLP metrics over HTTP: http://HOST:PORT, which is not encrypted, or https://HOST:PORT; /v1/metrics unless it has a path. Who reads them there learns who connects to whom. What it does not take is dropped and counted. Empty exports nothing")
	fs.StringVar(&o.caFile, "otlp-ca-file", o.caFile, "with an --otlp-endpoint of https, `FILE` with the certificates, in PEM, that sign the collector's; empty trusts those of the system, of which the image has none")
	fs.DurationVar(&o.interval, "otlp-interval", o.interval, "time between two exports to --otlp-endpoint, 10s-1h")
}

func (o *otlpOptions) validate() error {
	var errs []error
	if o.interval < otlp.MinInterval || o.interval > maxOTLPInterval {
		errs = append(errs, flagError("otlp-interval", o.interval, "must be in %s-%s", otlp.MinInterval, maxOTLPInterval))
	}
	if o.endpoint == "" {
		if o.caFile != "" {
			errs = append(errs, flagError("otlp-ca-file", o.caFile, "needs --otlp-endpoint"))
		}
		return errors.Join(errs...)
	}
	u, err := otlp.ParseEndpoint(o.endpoint)
	switch {
	case err != nil:
		errs = append(errs, flagError("otlp-endpoint", o.endpoint, "%v", err))
	case o.caFile != "" && u.Scheme != "https":
		errs = append(errs, flagError("otlp-ca-file", o.caFile, "needs an --otlp-endpoint of https"))
	}
	return errors.Join(errs...)
}

// config returns where to export to for valid options.
func (o *otlpOptions) config() (cfg agent.OTLP, err error) {
	if o.endpoint == "" {
		return cfg, nil
	}
	cfg.Interval, cfg.Version = o.interval, version.Version
	if cfg.Endpoint, err = otlp.ParseEndpoint(o.endpoint); err != nil || o.caFile == "" {
		return cfg, err
	}
	text, err := os.ReadFile(o.caFile)
	if err != nil {
		return cfg, fmt.Errorf("--otlp-ca-file: %w", err)
	}
	cfg.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
	if !cfg.TLS.RootCAs.AppendCertsFromPEM(text) {
		return cfg, fmt.Errorf("--otlp-ca-file=%s: has no certificate in PEM", o.caFile)
	}
	return cfg, nil
}
