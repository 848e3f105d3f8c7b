package main

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/pkg/denials"
	"sigs.k8s.io/kube-network-policies/pkg/flows"
)

// denialsOptions are the flags of what policies denied lately.
type denialsOptions struct {
	port      uint16
	caFile    string
	tokenFile string
}

func (o *denialsOptions) addFlags(fs *pflag.FlagSet) {
	fs.Uint16Var(&o.port, "denials-port", o.port, "`PORT` of the agents' --metrics-bind-address, where they serve with --metrics-secure what their policies denied in the last hour; it becomes a condition of each of these policies. 0 asks no agent, and removes these conditions. The agents are the pods of --leader-elect-namespace with the label "+agentSelector+". It needs the right to list and watch these pods, and for the token the right to get "+flows.DeniedPath)
	fs.StringVar(&o.caFile, "denials-ca-file", o.caFile, "with --denials-port, `FILE` with the certificates that certify the agents' one, in PEM. That is verified for the name kube-network-policies")
	fs.StringVar(&o.tokenFile, "denials-token-file", o.tokenFile, "with --denials-port, `FILE` with the token that agents are asked with; a changed file is read again. Its audience must be "+flows.DeniedAudience)
}

func (o *denialsOptions) validate() error {
	var errs []error
	for flag, file := range map[string]string{"denials-ca-file": o.caFile, "denials-token-file": o.tokenFile} {
		switch {
		case o.port != 0 && file == "":
			errs = append(errs, flagError(flag, file, "--denials-port needs it"))
		case o.port == 0 && file != "":
			errs = append(errs, flagError(flag, file, "needs --denials-port"))
		}
	}
	return errors.Join(errs...)
}

// collector returns what asks the agents of a namespace, nil for nothing.
func (o *denialsOptions) collector(client kubernetes.Interface, namespace string, reg prometheus.Registerer) (*denials.Collector, error) {
	if o.port == 0 {
		return nil, nil
	}
	ask, err := denials.HTTPS(o.port, o.caFile, o.tokenFile)
	if err != nil {
		return nil, fmt.Errorf("--denials-port=%d: %w", o.port, err)
	}
	return denials.New(denials.Config{Client: client, Namespace: namespace, Agents: agentSelector, Ask: ask, Registerer: reg})
}
