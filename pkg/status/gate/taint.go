package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/status/agents"
)

// taintRetry is the pause before a removal that failed is tried again.
const taintRetry = 2 * time.Second

// Taint removes a taint from nodes whose agent is ready. The creator of a node sets it, which keeps pods
// away until then.
type Taint struct {
	nodes    Nodes
	pods     apiclient.Source[*corev1.PodList]
	key      string
	agents   string
	removals *prometheus.CounterVec
}

// Nodes lists, watches and patches nodes.
type Nodes interface {
	apiclient.Source[*corev1.NodeList]
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, o metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// NewTaint returns a Taint with a key and any effect. The agents are the pods that a label selector
// selects. It starts nothing.
func NewTaint(nodes Nodes, pods apiclient.Source[*corev1.PodList], key, agents string, reg prometheus.Registerer) (*Taint, error) {
	if faults := validation.IsQualifiedName(key); len(faults) > 0 {
		return nil, fmt.Errorf("startup taint %q: %s", key, faults[0])
	}
	return &Taint{nodes, pods, key, agents, newWrites(reg, "Node", resultSuccess, resultConflict, resultError)}, nil
}

// Run removes taints until ctx ends. It may then be called again.
func (t *Taint) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "startuptaint"))
	nodes, pods := agents.NewNodes(t.nodes, stripNode), agents.NewPods(t.pods, t.agents)
	loop := runner.New(runner.Config{MinInterval: settleTime, RetryInterval: taintRetry}, func(ctx context.Context) error {
		return t.sync(ctx, nodes.GetStore().List(), pods.GetStore().List())
	})
	for _, informer := range []cache.SharedIndexInformer{nodes, pods} {
		// It returns an error only for an informer that has ended.
		_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { loop.Poke() },
			UpdateFunc: func(any, any) { loop.Poke() },
		})
	}
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { nodes.RunWithContext(ctx) })
	following.Go(func() { pods.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced, pods.HasSynced) {
		return
	}
	klog.FromContext(ctx).Info("Removing the startup taint from nodes whose agent is ready", "key", t.key)
	loop.Run(ctx)
}

// stripNode removes unused fields.
func stripNode(o any) (any, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return o, nil
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion, CreationTimestamp: node.CreationTimestamp},
		Spec:       corev1.NodeSpec{Taints: node.Spec.Taints},
	}, nil
}

// sync removes the taint from nodes with a ready agent.
func (t *Taint) sync(ctx context.Context, nodes, pods []any) error {
	var errs []error
	for _, o := range nodes {
		node := o.(*corev1.Node)
		if slices.ContainsFunc(node.Spec.Taints, t.isOurs) && slices.ContainsFunc(pods, func(p any) bool { return isReadyAgent(p.(*corev1.Pod), node) }) {
			errs = append(errs, t.remove(ctx, node))
		}
	}
	return errors.Join(errs...)
}

func (t *Taint) isOurs(taint corev1.Taint) bool { return taint.Key == t.key }

// isReadyAgent reports whether pod is a ready agent of the node. A pod that is older than the node
// belonged to an earlier node with the same name; its status does not count.
func isReadyAgent(pod *corev1.Pod, node *corev1.Node) bool {
	return pod.Spec.NodeName == node.Name && pod.DeletionTimestamp == nil && !pod.CreationTimestamp.Before(&node.CreationTimestamp) &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
}

// remove removes the taint unless the node has changed; that change triggers the next attempt.
func (t *Taint) remove(ctx context.Context, node *corev1.Node) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	type object = map[string]any
	patch, err := json.Marshal(object{
		"metadata": object{"resourceVersion": node.ResourceVersion},
		"spec":     object{"taints": slices.DeleteFunc(slices.Clone(node.Spec.Taints), t.isOurs)},
	})
	if err != nil {
		return err
	}
	_, err = t.nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	switch {
	case err == nil:
		t.removals.WithLabelValues(resultSuccess).Inc()
		klog.FromContext(ctx).Info("Removed the startup taint: the agent is ready", "node", node.Name)
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		t.removals.WithLabelValues(resultConflict).Inc()
	default:
		t.removals.WithLabelValues(resultError).Inc()
		return fmt.Errorf("remove the taint %s from node %s: %w", t.key, node.Name, err)
	}
	return nil
}
