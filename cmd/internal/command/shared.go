package command

import (
	"errors"
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

// Shared are the flags that the agent and the status writer share.
type Shared struct {
	Logging
	API
	adminPolicies      bool
	Features           compile.Features
	Audit              bool
	MetricsBindAddress string
	MetricsTLS         MetricsTLS
}

// NewShared returns the defaults.
func NewShared() Shared {
	return Shared{
		Logging:            NewLogging(),
		Features:           compile.AllFeatures(),
		MetricsBindAddress: httpserver.DefaultAddress,
		MetricsTLS:         TLSOff,
	}
}

// AddFlags implements Command.
func (o *Shared) AddFlags(fs *pflag.FlagSet) {
	o.Logging.AddFlags(fs)
	o.API.AddFlags(fs)
	fs.BoolVar(&o.adminPolicies, "admin-policies", o.adminPolicies, "enforce administrators' policies too ("+compile.AdminKindNames()+"), each kind as soon as the cluster serves it. Agents and status writer need the same value")
	featuregates.AddFlag(fs, &o.Features, "Policies that use a disabled part fail closed and are reported. Agents and status writer need the same value")
	fs.BoolVar(&o.Audit, "audit", o.Audit, "evaluate policies and enforce none of them, as if all were annotated "+compile.EnforcementAnnotation+": audit. Agents and status writer need the same value")
	fs.Var(Checked(&o.MetricsBindAddress, isHostPort), "metrics-bind-address", "address of /metrics, /livez and /readyz, as `HOST:PORT`; no host means all addresses. An agent waits while it is in use, a status writer does not start")
	fs.TextVar(&o.MetricsTLS, "metrics-tls", o.MetricsTLS, "off, self-signed, or a `FOLDER` with tls.crt and tls.key, which are read again when they change. With TLS, /metrics needs a token that may get it, and the program rights to create tokenreviews and subjectaccessreviews")
}

func isHostPort(s string) error {
	if _, _, err := net.SplitHostPort(s); err != nil {
		return fmt.Errorf("must be host:port (%w)", err)
	}
	return nil
}

// IsEmptyOrHostPort checks an address that may be empty.
func IsEmptyOrHostPort(s string) error {
	if s == "" {
		return nil
	}
	return isHostPort(s)
}

// AdminKinds returns the kinds of --admin-policies.
func (o *Shared) AdminKinds() []*compile.Kind {
	if !o.adminPolicies {
		return nil
	}
	return compile.AdminKinds()
}

// Logging are the flags of Kubernetes' logging library.
type Logging struct{ config *logsapi.LoggingConfiguration }

// NewLogging returns the defaults.
func NewLogging() Logging { return Logging{logsapi.NewLoggingConfiguration()} }

// AddFlags implements Command.
func (l Logging) AddFlags(fs *pflag.FlagSet) { logsapi.AddFlags(l.config, fs) }

// Validate checks the flags.
func (l Logging) Validate() error {
	if err := logsapi.Validate(l.config, nil, nil).ToAggregate(); err != nil {
		return FlagError("logging-format", l.config.Format, "%v", err)
	}
	return nil
}

// Apply makes the process log so.
func (l Logging) Apply() error {
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingError
	return logsapi.ValidateAndApply(l.config, nil)
}

// API is the flag with the kubeconfig for the API server.
type API struct{ Kubeconfig string }

// AddFlags implements Command.
func (a *API) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.Kubeconfig, "kubeconfig", a.Kubeconfig, "kubeconfig `FILE` for the API server; empty uses the service account of the pod")
}

// Client returns the configuration of clients of the API server.
func (a *API) Client() (*rest.Config, error) {
	var config *rest.Config
	var err error
	if a.Kubeconfig == "" {
		config, err = rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, flagError{errors.New("--kubeconfig is missing: outside of a pod it names the file for the API server")}
		}
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", a.Kubeconfig)
	}
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, FlagError("kubeconfig", a.Kubeconfig, "it names no cluster")
	case err != nil:
		return nil, FlagError("kubeconfig", a.Kubeconfig, "%v", err)
	}
	config.UserAgent = "kube-network-policies"
	return config, nil
}

// namespaceFile has the namespace of a pod.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Namespace returns the namespace of agents and status writer: that of the pod or, outside of the
// cluster, that of install.yaml.
func (a *API) Namespace() (string, error) {
	if a.Kubeconfig != "" {
		return "kube-system", nil
	}
	text, err := os.ReadFile(namespaceFile)
	return strings.TrimSpace(string(text)), err
}
