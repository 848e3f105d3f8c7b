package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/pkg/status/agents"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
	"sigs.k8s.io/kube-network-policies/pkg/status/gate"
)

// Run writes conditions until ctx ends.
func (o *writerOptions) Run(ctx context.Context) error {
	host, config, err := o.start()
	if err != nil {
		return err
	}
	reg := httpserver.NewRegistry()
	w, err := o.newWriter(ctx, config, host, reg)
	if err != nil {
		return err
	}
	access, err := o.MetricsTLS.Access(ctx, config, host)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.MetricsBindAddress)
	if err != nil {
		return fmt.Errorf("--metrics-bind-address=%s: %w", o.MetricsBindAddress, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return httpserver.New(httpserver.Handler(reg, healthy, healthy), nil, reg).Run(ctx, listener, access)
	})
	group.Go(func() error { return w.Run(ctx) })
	return group.Wait()
}

// Run removes all conditions and annotations.
func (c *writerCleanup) Run(ctx context.Context) error {
	host, config, err := c.start()
	if err != nil {
		return err
	}
	if c.daemonSet != "" {
		if err := c.waitForDaemonSet(ctx, config); err != nil {
			return err
		}
	}
	w, err := c.newWriter(ctx, config, host, httpserver.NewRegistry())
	if err != nil {
		return err
	}
	return w.Cleanup(ctx)
}

// waitForDaemonSet waits until the pods of --wait-for-daemonset are ready on all nodes. What fails is
// tried again: the API server may be out of reach until this pod's node is clean.
func (c *writerCleanup) waitForDaemonSet(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	namespace, err := c.Namespace()
	if err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(ctx context.Context) (bool, error) {
		o, err := client.Resource(appsv1.SchemeGroupVersion.WithResource("daemonsets")).Namespace(namespace).Get(ctx, c.daemonSet, metav1.GetOptions{})
		var d appsv1.DaemonSet
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d)
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "DaemonSet not read, trying again", "daemonSet", klog.KRef(namespace, c.daemonSet))
			return false, nil
		}
		return readyOnAllNodes(&d), nil
	})
}

// readyOnAllNodes reports whether a DaemonSet is as its controller has seen it last, and
// complete.
func readyOnAllNodes(d *appsv1.DaemonSet) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Status.NumberReady >= d.Status.DesiredNumberScheduled
}

// start returns the name of this host and the configuration of clients.
func (o *writerOptions) start() (host string, config *rest.Config, err error) {
	if err := o.Apply(); err != nil {
		return "", nil, err
	}
	if host, err = os.Hostname(); err != nil {
		return "", nil, fmt.Errorf("name of this host: %w", err)
	}
	if config, err = o.Client(); err != nil {
		return "", nil, err
	}
	config.QPS = -1 // the writer limits its writes itself, and reads are few
	return host, config, nil
}

func (o *writerOptions) newWriter(ctx context.Context, config *rest.Config, host string, reg prometheus.Registerer) (*status.Writer, error) {
	clients, err := newClients(config)
	if err != nil {
		return nil, err
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	namespace, err := o.Namespace()
	if err != nil {
		return nil, err
	}
	taints, err := o.taintRemover(clients.core, namespace, reg)
	if err != nil {
		return nil, err
	}
	asked, err := agents.NewClient(host, agentName)
	if err != nil {
		return nil, err
	}
	inForce, err := enforced.New(enforced.Config{
		Pods: apiclient.Pods(clients.core, namespace), Nodes: apiclient.Nodes(clients.core), Agents: agentSelector, Registerer: reg,
		Ask: agents.Ask(asked, inforce.Path, inforce.Decode),
	})
	if err != nil {
		return nil, err
	}
	ready, err := o.readiness(clients.core, inForce, reg)
	if err != nil {
		return nil, err
	}
	features := o.Features
	features.SCTPUntracked = errors.Is(steer.ProbeSCTPConntrack(), errors.ErrUnsupported)
	klog.FromContext(ctx).Info("Checking policies", "features", features)
	return status.New(status.Config{
		Discovery:      clients.core,
		Events:         clients.events,
		Leases:         clients.leases,
		Dynamic:        dynamicClient,
		Kinds:          o.statusKinds(dynamicClient, clients.core, features),
		Annotations:    compile.StripAnnotations,
		Audited:        o.audited,
		Enforced:       inForce,
		Readiness:      ready,
		Accepted:       compile.ReportsAccepted,
		Reports:        compile.ReportsEnforced,
		Beside:         taints,
		LeaseNamespace: namespace,
		Identity:       asked.Identity(),
		Registerer:     reg,
	})
}

// clients are those of the groups that the writer needs, beside those of policies.
type clients struct{ core, events, leases rest.Interface }

func newClients(config *rest.Config) (c clients, err error) {
	for version, client := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion: &c.core, eventsv1.SchemeGroupVersion: &c.events, coordinationv1.SchemeGroupVersion: &c.leases,
	} {
		if *client, err = apiclient.New(config, nil, version); err != nil {
			return c, err
		}
	}
	return c, nil
}

// audited reports whether a policy is audited, for status.Config.
func (o *writerOptions) audited(policy, namespace metav1.Object) bool {
	return o.Audit || compile.Audits(policy, namespace)
}

// taintRemover returns the function that removes the startup taint of nodes, nil without
// --startup-taint.
func (o *writerOptions) taintRemover(core rest.Interface, namespace string, reg prometheus.Registerer) (func(context.Context), error) {
	if o.startupTaint == "" {
		return nil, nil
	}
	taint, err := gate.NewTaint(apiclient.Nodes(core), apiclient.Pods(core, namespace), o.startupTaint, agentSelector, reg)
	if err != nil {
		return nil, err
	}
	return taint.Run, nil
}

// readiness returns what makes pods ready, nil without --pod-readiness.
func (o *writerOptions) readiness(core rest.Interface, rounds *enforced.Collector, reg prometheus.Registerer) (*gate.Gate, error) {
	if !o.podReadiness {
		return nil, nil
	}
	conditions := []corev1.PodConditionType{gate.PoliciesEnforced}
	if o.Features.PodNetworkReadiness {
		conditions = append(conditions, gate.NetworkReady)
	}
	return gate.New(gate.Config{
		Pods: func(namespace string) gate.Pods { return apiclient.Pods(core, namespace) }, Rounds: rounds,
		Conditions: conditions, FieldManager: status.FieldManager, Registerer: reg,
	})
}

// healthy is the probe of the writer. A writer that waits for its lease is as healthy as
// the active one, and a restart does not help one that cannot reach the API server.
func healthy() error { return nil }
