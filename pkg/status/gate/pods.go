package gate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
)

// selected are the pods that may wait for a condition.
const selected = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"

// pod is a pod that names a condition which is not true.
type pod struct {
	uid         types.UID
	lacks       []corev1.PodConditionType
	node        string
	hostNetwork bool
	addresses   string // empty before it has any
	pending     bool   // the conditions say for what it waits
	stored      string // the pod's version with the conditions that were written, before the watch has it

	version string          // of the pod, when it had its addresses
	since   time.Time       // when that was seen
	needs   []enforced.Need // of its own node, empty before they are known
	taken   time.Time       // when they were
	retry   time.Time       // after a write that failed
}

// waits reports whether the conditions may be written.
func (p *pod) waits() bool { return p.addresses != "" && p.stored == "" }

// known is what the other nodes need.
func (p *pod) known() enforced.Need {
	return enforced.Need{Kind: compile.KindPod.Name, Version: p.version}
}

// take makes the versions the needs of the pod, unless it has some, and reports whether agents have to be
// asked. Needs never become stricter, and they are lowered to what the server has: it may have been
// restored from a backup.
func (p *pod) take(versions map[string]string, now time.Time) bool {
	changed := len(p.needs) == 0
	if changed {
		p.needs = append(p.needs, p.known())
		for kind, version := range versions {
			p.needs = append(p.needs, enforced.Need{Kind: kind, Version: version})
		}
	}
	p.needs = slices.DeleteFunc(p.needs, func(n enforced.Need) bool {
		gone := n.Kind != compile.KindPod.Name && versions[n.Kind] == ""
		changed = changed || gone
		return gone
	})
	for i := range p.needs {
		n := &p.needs[i]
		if n.Kind != compile.KindPod.Name && !inforce.Reaches(versions[n.Kind], n.Version) {
			n.Version, changed = versions[n.Kind], true
		}
	}
	if changed {
		p.taken = now // answers to earlier questions may be about versions that are used again
	}
	return changed
}

// store is where the Reflector puts pods. It keeps those that wait, and no others: an informer would keep
// all pods of the cluster.
type store struct{ *Gate }

// watch follows the pods until ctx ends.
func (g *Gate) watch(ctx context.Context) {
	logger := klog.FromContext(ctx)
	source := apiclient.ListWatch(g.cfg.Pods(metav1.NamespaceAll), metav1.ListOptions{FieldSelector: selected})
	cache.NewReflectorWithOptions(source, &corev1.Pod{}, store{g}, cache.ReflectorOptions{Name: "readiness", Logger: &logger}).RunWithContext(ctx)
}

// Transformer makes pods of a streamed list small before the Reflector collects them.
func (s store) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return o, nil
		}
		small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, DeletionTimestamp: p.DeletionTimestamp,
		}}
		if len(s.lacking(p)) > 0 {
			small.Spec = corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, ReadinessGates: p.Spec.ReadinessGates}
			small.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs, Conditions: p.Status.Conditions}
		}
		return small, nil
	}
}

// Add implements cache.ReflectorStore.
func (s store) Add(o any) error { return s.Update(o) }

// Update implements cache.ReflectorStore.
func (s store) Update(o any) error {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("no pod: %T", o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe(p)
	return nil
}

// Delete implements cache.ReflectorStore.
func (s store) Delete(o any) error {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("no pod: %T", o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, nameOf(p))
	return nil
}

// Replace implements cache.ReflectorStore. The list may be that of a restored server, which has forgotten
// what was written.
func (s store) Replace(list []any, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.pods
	s.pods = make(map[types.NamespacedName]*pod)
	for i, o := range list {
		p, ok := o.(*corev1.Pod)
		if !ok {
			return fmt.Errorf("no pod: %T", o)
		}
		if old := before[nameOf(p)]; old != nil {
			old.stored = ""
			s.pods[nameOf(p)] = old
		}
		s.observe(p)
		list[i] = nil // it can be freed
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s store) Resync() error { return nil }

// observe takes a version of a pod. It is called with the mutex held.
func (g *Gate) observe(p *corev1.Pod) {
	name, lacking := nameOf(p), g.lacking(p)
	if len(lacking) == 0 || p.DeletionTimestamp != nil || ended(p) {
		delete(g.pods, name)
		return
	}
	known := g.pods[name]
	if known == nil || known.uid != p.UID {
		known = &pod{uid: p.UID}
		g.pods[name] = known
	}
	known.node, known.hostNetwork, known.lacks = p.Spec.NodeName, p.Spec.HostNetwork, lacking
	known.pending = known.pending || !slices.ContainsFunc(lacking, func(c corev1.PodConditionType) bool { return conditionOf(p, c) == nil })
	addresses := addressesOf(p)
	switch {
	case addresses == "":
		known.addresses = ""
	case known.stored != "" && !inforce.Reaches(p.ResourceVersion, known.stored):
		// The watch has not come to the conditions that were written.
	case known.stored != "" || known.addresses != addresses || !inforce.Reaches(p.ResourceVersion, known.version):
		// New addresses, a condition that was removed, or a server that was restored.
		known.addresses, known.version, known.since = addresses, p.ResourceVersion, time.Now()
		known.needs, known.stored = nil, ""
		runner.Signal(g.poked)
	}
}

func nameOf(p *corev1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// lacking returns the conditions to write that a pod names and that are not true.
func (g *Gate) lacking(p *corev1.Pod) (lacking []corev1.PodConditionType) {
	for _, c := range g.cfg.Conditions {
		named := slices.Contains(p.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: c})
		if now := conditionOf(p, c); named && (now == nil || now.Status != corev1.ConditionTrue) {
			lacking = append(lacking, c)
		}
	}
	return lacking
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func conditionOf(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// addressesOf returns the addresses of a pod that has a node, for comparison.
func addressesOf(p *corev1.Pod) string {
	if p.Spec.NodeName == "" || p.Status.PodIP == "" {
		return ""
	}
	all := []string{p.Status.PodIP}
	for _, a := range p.Status.PodIPs {
		all = append(all, a.IP)
	}
	return strings.Join(all, " ")
}
