// Package startuptaint removes a taint from nodes whose agent is ready. The creator of a node
// sets the taint, which keeps pods away until then. The package knows pods and nodes of the
// API, but no policies.
package startuptaint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
)

const (
	// minInterval is the least time between two checks of all nodes, and retryInterval the
	// pause before a failed removal is retried.
	minInterval   = 200 * time.Millisecond
	retryInterval = 2 * time.Second
	// requestTimeout bounds one request.
	requestTimeout = 10 * time.Second
)

// Config is the configuration of a Remover.
type Config struct {
	// Client lists and watches nodes, and pods of Namespace, and patches nodes.
	Client kubernetes.Interface
	// Key is the key of the taint, with any effect.
	Key string
	// Namespace is the namespace of the agents, and Agents a label selector for them.
	Namespace, Agents string
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("Client is nil"))
	}
	if faults := validation.IsQualifiedName(c.Key); len(faults) > 0 {
		errs = append(errs, fmt.Errorf("Key %q: %s", c.Key, faults[0]))
	}
	if c.Namespace == "" {
		errs = append(errs, errors.New("Namespace is empty"))
	}
	if c.Agents == "" {
		errs = append(errs, errors.New("Agents is empty"))
	}
	if c.Registerer == nil {
		errs = append(errs, errors.New("Registerer is nil"))
	}
	return errors.Join(errs...)
}

// Remover removes the taint.
type Remover struct {
	cfg      Config
	removals *prometheus.CounterVec
}

// New returns a Remover. It starts nothing.
func New(cfg Config) (*Remover, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("startup taint config: %w", err)
	}
	r := &Remover{cfg: cfg, removals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_startup_taint_removals_total",
		Help: "Removals of the startup taint from nodes whose agent is ready.",
	}, []string{"result"})}
	for _, result := range []string{"success", "conflict", "error"} {
		r.removals.WithLabelValues(result)
	}
	cfg.Registerer.MustRegister(r.removals)
	return r, nil
}

// Run removes taints until ctx ends. It may then be called again.
func (r *Remover) Run(ctx context.Context) {
	logger := klog.LoggerWithName(klog.FromContext(ctx), "startuptaint")
	ctx = klog.NewContext(ctx, logger)
	nodeFactory := informers.NewSharedInformerFactoryWithOptions(r.cfg.Client, 0, informers.WithTransform(strip))
	podFactory := informers.NewSharedInformerFactoryWithOptions(r.cfg.Client, 0, informers.WithTransform(strip),
		informers.WithNamespace(r.cfg.Namespace), informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = r.cfg.Agents }))
	nodes, pods := nodeFactory.Core().V1().Nodes().Informer(), podFactory.Core().V1().Pods().Informer()
	loop := runner.New(runner.Config{MinInterval: minInterval, RetryInterval: retryInterval}, func(ctx context.Context) error {
		return r.sync(ctx, objects[*corev1.Node](nodes), objects[*corev1.Pod](pods))
	})
	for _, informer := range []cache.SharedIndexInformer{nodes, pods} {
		// It returns an error only for an informer that has ended.
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { loop.Poke() },
			UpdateFunc: func(any, any) { loop.Poke() },
		})
	}
	nodeFactory.StartWithContext(ctx)
	podFactory.StartWithContext(ctx)
	defer nodeFactory.Shutdown()
	defer podFactory.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced, pods.HasSynced) {
		return
	}
	logger.Info("Removing the startup taint from nodes whose agent is ready", "key", r.cfg.Key)
	loop.Run(ctx)
}

// strip removes unused fields.
func strip(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, ResourceVersion: o.ResourceVersion, CreationTimestamp: o.CreationTimestamp},
			Spec:       corev1.NodeSpec{Taints: o.Spec.Taints},
		}, nil
	case *corev1.Pod:
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, CreationTimestamp: o.CreationTimestamp, DeletionTimestamp: o.DeletionTimestamp},
			Spec:       corev1.PodSpec{NodeName: o.Spec.NodeName},
			Status:     corev1.PodStatus{Conditions: o.Status.Conditions},
		}, nil
	}
	return o, nil
}

func objects[T any](informer cache.SharedIndexInformer) (out []T) {
	for _, o := range informer.GetStore().List() {
		out = append(out, o.(T))
	}
	return out
}

// sync removes the taint from nodes with a ready agent.
func (r *Remover) sync(ctx context.Context, nodes []*corev1.Node, pods []*corev1.Pod) error {
	var errs []error
	for _, node := range nodes {
		if r.tainted(node) && slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return isReady(p, node) }) {
			errs = append(errs, r.remove(ctx, node))
		}
	}
	return errors.Join(errs...)
}

func (r *Remover) tainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, r.isOurs)
}

func (r *Remover) isOurs(taint corev1.Taint) bool { return taint.Key == r.cfg.Key }

// isReady reports whether pod is a ready agent of the node. A pod that is older than the node
// belonged to an earlier node with the same name; its status does not count.
func isReady(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Spec.NodeName == node.Name && pod.DeletionTimestamp == nil && !pod.CreationTimestamp.Before(&node.CreationTimestamp) &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// remove removes the taint unless the node has changed; that change triggers the next
// attempt.
func (r *Remover) remove(ctx context.Context, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	type object = map[string]any
	patch, err := json.Marshal(object{
		"metadata": object{"resourceVersion": node.ResourceVersion},
		"spec":     object{"taints": slices.DeleteFunc(slices.Clone(node.Spec.Taints), r.isOurs)},
	})
	if err != nil {
		return err
	}
	_, err = r.cfg.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case err == nil:
		r.removals.WithLabelValues("success").Inc()
		klog.FromContext(ctx).Info("Removed the startup taint: the agent is ready", "node", node.Name)
		return nil
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		r.removals.WithLabelValues("conflict").Inc()
		return nil
	}
	r.removals.WithLabelValues("error").Inc()
	return fmt.Errorf("remove the taint %s from node %s: %w", r.cfg.Key, node.Name, err)
}
