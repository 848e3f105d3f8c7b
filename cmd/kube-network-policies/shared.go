package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"sigs.k8s.io/kube-network-policies/cmd/internal/featuregates"
	"sigs.k8s.io/kube-network-policies/cmd/internal/kindflags"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// sharedOptions are the flags that the agent and the status writer have in common.
type sharedOptions struct {
	kubeconfig         string
	kinds              kindflags.Flags
	features           compile.Features
	audit              bool
	metricsBindAddress string
	metrics            metricsOptions
	logging            *logsapi.LoggingConfiguration
}

func newSharedOptions() sharedOptions {
	return sharedOptions{
		features:           compile.AllFeatures(),
		metricsBindAddress: ":9080",
		logging:            logsapi.NewLoggingConfiguration(),
	}
}

func (o *sharedOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "kubeconfig file for the API server; empty uses the service account of the pod. Start fails if it cannot be read")
	o.kinds = kindflags.Add(fs, "enable %s, as soon as its CustomResourceDefinition is installed. When false, these policies have no effect and get no conditions. Agents and status writer need the same value", false)
	featuregates.AddFlag(fs, &o.features, "Policies that use a disabled part fail closed and are reported. Agents and status writer need the same value")
	fs.BoolVar(&o.audit, "audit", o.audit, "evaluate policies and enforce none of them, as if all were annotated "+compile.EnforcementAnnotation+": audit. What they would deny passes, and is counted and logged. Agents and status writer need the same value")
	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", o.metricsBindAddress, "address and port, as `HOST:PORT`, of /metrics, /livez and /readyz; an empty host means all addresses. The agent waits while the port is in use, by the agent that it replaces for example; the status writer does not start")
	o.metrics.addFlags(fs)
	logsapi.AddFlags(o.logging, fs)
}

// validate returns an error for each flag with a wrong value.
func (o *sharedOptions) validate() error {
	var errs []error
	if _, _, err := net.SplitHostPort(o.metricsBindAddress); err != nil {
		errs = append(errs, flagError("metrics-bind-address", o.metricsBindAddress, "must be host:port (%v)", err))
	}
	errs = append(errs, o.metrics.validate())
	if err := logsapi.Validate(o.logging, nil, nil).ToAggregate(); err != nil {
		errs = append(errs, flagError("logging-format", o.logging.Format, "%v", err))
	}
	return errors.Join(errs...)
}

// flagError returns an error that begins with the flag and its value.
func flagError(flag string, value any, format string, args ...any) error {
	return fmt.Errorf("--%s=%v: %s", flag, value, fmt.Sprintf(format, args...))
}

func (o *sharedOptions) applyLogging() error {
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingError
	return logsapi.ValidateAndApply(o.logging, nil)
}

// restConfig returns the configuration of clients of the API server.
func (o *sharedOptions) restConfig() (*rest.Config, error) {
	var config *rest.Config
	var err error
	if o.kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", o.kubeconfig, err)
	}
	config.UserAgent = "kube-network-policies"
	return config, nil
}
