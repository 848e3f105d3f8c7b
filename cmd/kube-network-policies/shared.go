package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// gates are the feature gates by name, the same for the agent and the status
// writer: what the one does not do the other reports.
var gates = map[string]func(*compile.Features) *bool{
	"DomainNames": func(f *compile.Features) *bool { return &f.DomainNames },
	"EndPort":     func(f *compile.Features) *bool { return &f.EndPort },
	"Nodes":       func(f *compile.Features) *bool { return &f.Nodes },
	"SCTP":        func(f *compile.Features) *bool { return &f.SCTP },
}

func gateNames() []string { return slices.Sorted(maps.Keys(gates)) }

func addFeatureGates(fs *pflag.FlagSet, featureGates *map[string]bool) {
	fs.Var(cliflag.NewMapStringBool(featureGates), "feature-gates", "parts of the API to switch off or on, as NAME=true|false,…: "+strings.Join(gateNames(), ", ")+" (all true by default). Policies that use what is off fail closed and are reported. Agents and status writer need the same value")
}

// checkFeatureGates names every gate that does not exist.
func checkFeatureGates(featureGates map[string]bool) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(featureGates)) {
		if _, ok := gates[name]; !ok {
			errs = append(errs, fmt.Errorf("--feature-gates=%s: is none of %s", name, strings.Join(gateNames(), ", ")))
		}
	}
	return errors.Join(errs...)
}

func features(featureGates map[string]bool) compile.Features {
	f := compile.AllFeatures()
	for name, on := range featureGates {
		*gates[name](&f) = on
	}
	return f
}

func applyLogging(c *logsapi.LoggingConfiguration) error {
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingError
	return logsapi.ValidateAndApply(c, nil)
}

// restConfig tells how to reach the API server. An empty kubeconfig is the pod's
// service account.
func restConfig(kubeconfig string) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	config.UserAgent = "kube-network-policies"
	return config, nil
}
