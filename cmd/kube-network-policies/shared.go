package main

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"sigs.k8s.io/kube-network-policies/cmd/internal/featuregates"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// sharedOptions are the flags that the agent and the status writer share.
type sharedOptions struct {
	logging
	api
	adminPolicies      bool
	features           compile.Features
	audit              bool
	metricsBindAddress string
	metricsTLS         metricsTLS
}

func newSharedOptions() sharedOptions {
	return sharedOptions{
		logging:            newLogging(),
		features:           compile.AllFeatures(),
		metricsBindAddress: httpserver.DefaultAddress,
		metricsTLS:         tlsOff,
	}
}

func (o *sharedOptions) addFlags(fs *pflag.FlagSet) {
	o.logging.addFlags(fs)
	o.api.addFlags(fs)
	fs.BoolVar(&o.adminPolicies, "admin-policies", o.adminPolicies, "enforce administrators' policies too ("+compile.AdminKindNames()+"), each kind as soon as the cluster serves it. Agents and status writer need the same value")
	featuregates.AddFlag(fs, &o.features, "Policies that use a disabled part fail closed and are reported. Agents and status writer need the same value")
	fs.BoolVar(&o.audit, "audit", o.audit, "evaluate policies and enforce none of them, as if all were annotated "+compile.EnforcementAnnotation+": audit. Agents and status writer need the same value")
	fs.Var(checked(&o.metricsBindAddress, isHostPort), "metrics-bind-address", "address of /metrics, /livez and /readyz, as `HOST:PORT`; no host means all addresses. An agent waits while it is in use, a status writer does not start")
	fs.TextVar(&o.metricsTLS, "metrics-tls", o.metricsTLS, "off, self-signed, or a `FOLDER` with tls.crt and tls.key, which are read again when they change. With TLS, /metrics needs a token that may get it, and the program rights to create tokenreviews and subjectaccessreviews")
}

func isHostPort(s string) error {
	if _, _, err := net.SplitHostPort(s); err != nil {
		return fmt.Errorf("must be host:port (%w)", err)
	}
	return nil
}

// isEmptyOrHostPort is isHostPort for an address that may be empty.
func isEmptyOrHostPort(s string) error {
	if s == "" {
		return nil
	}
	return isHostPort(s)
}

// adminKinds returns the kinds of --admin-policies.
func (o *sharedOptions) adminKinds() []*compile.Kind {
	if !o.adminPolicies {
		return nil
	}
	return compile.AdminKinds()
}

// logging are the flags of Kubernetes' logging library.
type logging struct{ config *logsapi.LoggingConfiguration }

func newLogging() logging { return logging{logsapi.NewLoggingConfiguration()} }

func (l logging) addFlags(fs *pflag.FlagSet) { logsapi.AddFlags(l.config, fs) }

func (l logging) validate() error {
	if err := logsapi.Validate(l.config, nil, nil).ToAggregate(); err != nil {
		return flagError("logging-format", l.config.Format, "%v", err)
	}
	return nil
}

func (l logging) apply() error {
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingError
	return logsapi.ValidateAndApply(l.config, nil)
}

// api is the flag with the kubeconfig for the API server.
type api struct{ kubeconfig string }

func (a *api) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.kubeconfig, "kubeconfig", a.kubeconfig, "kubeconfig `FILE` for the API server; empty uses the service account of the pod")
}

// client returns the configuration of clients of the API server.
func (a *api) client() (*rest.Config, error) {
	var config *rest.Config
	var err error
	if a.kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", a.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", a.kubeconfig, err)
	}
	config.UserAgent = agentName
	return config, nil
}

// namespaceFile has the namespace of a pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// namespace returns the namespace of agents and status writer: that of the pod or, outside of the
// cluster, that of install.yaml.
func (a *api) namespace() (string, error) {
	if a.kubeconfig != "" {
		return "kube-system", nil
	}
	text, err := os.ReadFile(namespaceFile)
	return strings.TrimSpace(string(text)), err
}
