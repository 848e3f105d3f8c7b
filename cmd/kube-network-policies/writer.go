package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/startuptaint"
	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// run writes conditions until ctx ends, or removes all of them.
func (o *writerOptions) run(ctx context.Context) error {
	if err := o.applyLogging(); err != nil {
		return err
	}
	config, err := o.restConfig()
	if err != nil {
		return err
	}
	config.QPS = -1 // the writer limits the rate of writes itself, and reads are few
	reg := httpserver.NewRegistry()
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this host: %w", err)
	}
	w, err := o.newWriter(ctx, config, host, reg)
	if err != nil {
		return err
	}
	if o.cleanup {
		return w.Cleanup(ctx)
	}
	access, err := o.metrics.access(ctx, config, host)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.metricsBindAddress)
	if err != nil {
		return fmt.Errorf("--metrics-bind-address=%s: %w", o.metricsBindAddress, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return httpserver.New(httpserver.Handler(reg, healthy, healthy), nil, reg).Run(ctx, listener, access)
	})
	group.Go(func() error { return w.Run(ctx) })
	return group.Wait()
}

func (o *writerOptions) newWriter(ctx context.Context, config *rest.Config, host string, reg prometheus.Registerer) (*status.Writer, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	beside, err := o.beside(client, reg)
	if err != nil {
		return nil, err
	}
	denied, err := o.denials.collector(client, o.leaseNamespace, reg)
	if err != nil {
		return nil, err
	}
	features := o.features
	features.SCTPUntracked = errors.Is(steer.ProbeSCTPConntrack(), errors.ErrUnsupported)
	klog.FromContext(ctx).Info("Checking policies", "features", features)
	return status.New(status.Config{
		Client:         client,
		Dynamic:        dynamicClient,
		Kinds:          o.statusKinds(dynamicClient, client, features),
		QPS:            float64(o.qps),
		Burst:          o.burst,
		Events:         o.events,
		Enforcement:    compile.EnforcementAnnotation,
		Audited:        o.audited,
		Denials:        denied,
		Beside:         beside,
		LeaseNamespace: o.leaseNamespace,
		Identity:       host + "_" + string(uuid.NewUUID()),
		Registerer:     reg,
	})
}

// audited reports whether a policy is audited, for status.Config.
func (o *writerOptions) audited(policy, namespace metav1.Object) bool {
	return o.audit || compile.Audits(policy, namespace)
}

// beside returns what the writer does for nodes, nil for nothing.
func (o *writerOptions) beside(client kubernetes.Interface, reg prometheus.Registerer) (func(context.Context), error) {
	if o.startupTaint == "" {
		return nil, nil
	}
	remover, err := startuptaint.New(startuptaint.Config{
		Client: client, Key: o.startupTaint, Namespace: o.leaseNamespace, Agents: agentSelector, Registerer: reg,
	})
	if err != nil {
		return nil, err
	}
	return remover.Run, nil
}

// healthy is the probe of the writer. A writer that waits for its lease is as healthy as
// the active one, and a restart does not help one that cannot reach the API server.
func healthy() error { return nil }
