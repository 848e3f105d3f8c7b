package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
)

// text is what the conditions of a pod say.
type text struct {
	status          corev1.ConditionStatus
	reason, message string
}

// write is conditions of a pod to be written.
type write struct {
	types.NamespacedName
	uid        types.UID
	conditions []corev1.PodConditionType
	since      time.Time
	text
}

// due returns what may be written now, for pods that have waited longest first. unknown is
// why needs are not known. It is called with the mutex held.
func (g *Gate) due(unknown error, now time.Time) []write {
	var all []write
	for name, p := range g.pods {
		if !p.waits() || now.Before(p.retry) {
			continue
		}
		t := p.text(g.round, unknown, now)
		if t.status == corev1.ConditionTrue || t.reason != "" && !p.pending && now.Sub(p.since) >= reasonAfter {
			all = append(all, write{name, p.uid, p.lacks, p.since, t})
		}
	}
	slices.SortFunc(all, func(a, b write) int { return a.since.Compare(b.since) })
	return slices.DeleteFunc(all, func(w write) bool {
		limiter := g.reasons
		if w.status == corev1.ConditionTrue {
			limiter = g.writes
		}
		return !limiter.Allow() // the next step takes it up again
	})
}

// text returns what a round says of a pod. It has no reason if that is not known yet.
func (p *pod) text(r enforced.Round, unknown error, now time.Time) text {
	switch {
	case p.hostNetwork:
		return text{corev1.ConditionTrue, HostNetwork, "The pod has the network of its node. Policies for pods do not apply to it."}
	case len(p.needs) == 0 && unknown != nil:
		return text{corev1.ConditionFalse, Pending, fmt.Sprintf("The status writer does not know the policies: %v.", unknown)}
	case len(p.needs) == 0 || !r.After(p.taken):
		return text{status: corev1.ConditionFalse}
	}
	own := r.OnNode(p.node, p.needs...)
	if own == nil && r.Everywhere(p.known()) {
		return text{corev1.ConditionTrue, EnforcedOnAllNodes, fmt.Sprintf("Policies are in force on its node, and all %d nodes know the pod.", r.Nodes())}
	}
	if own != nil || now.Sub(p.since) < othersPatience {
		return text{corev1.ConditionFalse, Pending, "Waiting for " + p.lacking(r, own) + "."}
	}
	return text{corev1.ConditionTrue, EnforcedOnOwnNode, fmt.Sprintf(
		"Policies are in force on its node. After %v, it does not wait any longer for %s.", othersPatience, p.lacking(r, nil))}
}

// lacking names nodes for which a pod waits, first its own if that has an error.
func (p *pod) lacking(r enforced.Round, own error) string {
	var lacking inforce.Lacking
	if own != nil {
		lacking.Add("its own node "+p.node, own)
	}
	r.AddLacking(&lacking, p.node, p.known())
	return lacking.String()
}

// write writes the conditions of pods, a few at the same time.
func (g *Gate) write(ctx context.Context, due []write) {
	var group errgroup.Group
	group.SetLimit(writesAtOnce)
	for _, w := range due {
		group.Go(func() error {
			version, err := g.patch(ctx, w)
			if ctx.Err() == nil {
				g.wrote(ctx, w, version, err)
			}
			return nil
		})
	}
	_ = group.Wait() // wrote handles errors
}

// patch writes the conditions of the pod with that UID, and returns the version of the pod. It names
// no version, since the kubelet writes the status at the same time.
func (g *Gate) patch(ctx context.Context, w write) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	type object = map[string]any
	var conditions []object
	for _, c := range w.conditions {
		conditions = append(conditions, object{
			"type": c, "status": w.status, "reason": w.reason, "message": w.message,
			"lastTransitionTime": metav1.NewTime(time.Now()),
		})
	}
	patch, err := json.Marshal(object{
		"metadata": object{"uid": w.uid},
		"status":   object{"conditions": conditions},
	})
	if err != nil {
		return "", err
	}
	p, err := g.cfg.Pods(w.Namespace).Patch(ctx, w.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: g.cfg.FieldManager}, "status")
	if err != nil {
		return "", fmt.Errorf("conditions %v of pod %v: %w", w.conditions, w.NamespacedName, err)
	}
	return p.ResourceVersion, nil
}

// wrote takes the result of a write.
func (g *Gate) wrote(ctx context.Context, w write, version string, err error) {
	result := resultOf(err)
	g.written.WithLabelValues(result).Inc()
	logger := klog.FromContext(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pods[w.NamespacedName]
	if p == nil || p.uid != w.uid {
		return // the watch was faster
	}
	switch {
	case result == resultGone:
		delete(g.pods, w.NamespacedName)
	case result == resultError:
		p.retry = time.Now().Add(retryInterval)
		g.errorLog.Do(func() { logger.Error(err, failure(err)) })
	case w.status == corev1.ConditionTrue:
		p.stored = version
		logger.V(2).Info("Policies are in force for a pod", "pod", klog.KRef(w.Namespace, w.Name), "reason", w.reason)
	default:
		p.pending = true
	}
}

// failure says why pods are not made ready.
func failure(err error) string {
	if apierrors.IsForbidden(err) {
		return "Pods cannot be made ready without the rights of install-readiness.yaml, trying again"
	}
	return "Cannot make pods ready, trying again"
}

// resultOf returns the result of a write for metrics. The API server refuses a UID that is not the pod's
// as a change of a field that cannot change.
func resultOf(err error) string {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return resultSuccess
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return resultGone
	case apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil &&
		slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" }):
		return resultGone
	}
	return resultError
}
