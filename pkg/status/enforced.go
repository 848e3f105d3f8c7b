package status

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
)

// note tells the collector of the revision of a policy, as soon as it has changed: agents are asked
// while its other conditions wait.
func (w *kindWriter) note(obj any, fresh bool) {
	o, ok := obj.(*unstructured.Unstructured)
	if !ok || w.cfg.Enforced == nil {
		return
	}
	needs := []enforced.Need{{Kind: w.kind.Name, Version: o.GetResourceVersion()}}
	if ns := w.namespaceOf(o); ns != nil { // it may say whether the policy is audited
		needs = append(needs, enforced.Need{Kind: "Namespace", Version: ns.GetResourceVersion()})
	}
	name := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	w.cfg.Enforced.Note(enforced.Policy{Kind: w.kind.Name, NamespacedName: name}, w.revision(o), fresh, needs...)
}

func (w *kindWriter) revision(o *unstructured.Unstructured) enforced.Revision {
	return enforced.Revision{UID: o.GetUID(), Generation: o.GetGeneration(), Audited: w.audits(o)}
}

// forgetEnforced ends following a policy that is deleted.
func (w *kindWriter) forgetEnforced(key types.NamespacedName) {
	if w.cfg.Enforced != nil {
		w.cfg.Enforced.Forget(enforced.Policy{Kind: w.kind.Name, NamespacedName: key})
	}
}

// enforced returns the Enforced condition of a policy that is not audited, none if it has no other
// effect or if its author does not ask for it. While it is not known it returns the stored condition,
// which may be of an earlier generation, and also if another one may not be shown yet. One that is true
// stays as it is when nodes come and go.
func (w *kindWriter) enforced(key types.NamespacedName, p *plan, stored []metav1.Condition) []metav1.Condition {
	o := p.object
	asked := p.sink.Name() == SubresourceSink || w.cfg.Reports != nil && w.cfg.Reports(o, w.namespaceOf(o))
	if w.cfg.Enforced == nil || p.audited || !asked || p.conditions[0].Status != metav1.ConditionTrue {
		return nil
	}
	var kept []metav1.Condition
	current := false // kept is of this generation
	if old := enforcedOf(stored); old != nil {
		kept, current = []metav1.Condition{*old}, old.ObservedGeneration == o.GetGeneration()
	}
	followed, revision := enforced.Policy{Kind: w.kind.Name, NamespacedName: key}, w.revision(o)
	text, known := w.cfg.Enforced.Of(followed, revision)
	switch {
	case !known, current && kept[0].Status == metav1.ConditionTrue && text.Status == metav1.ConditionTrue:
		return kept
	case current && kept[0].Status == text.Status && kept[0].Message == truncate(text.Message, maxMessage):
		return kept // it is shown
	case !w.cfg.Enforced.MayShow(followed, revision, current):
		return kept
	}
	c := condition(Enforced, text.Status, text.Reason, truncate(text.Message, maxMessage))
	c.ObservedGeneration = o.GetGeneration()
	return []metav1.Condition{c}
}

// isEnforced reports whether c is an Enforced condition of a policy that is not audited.
func isEnforced(c metav1.Condition) bool { return c.Type == Enforced && c.Reason != Audit }

// enforcedOf returns the Enforced condition of a policy that is not audited, nil if there is none.
func enforcedOf(conditions []metav1.Condition) *metav1.Condition {
	if i := slices.IndexFunc(conditions, isEnforced); i >= 0 {
		return &conditions[i]
	}
	return nil
}

// ofSpec returns the conditions that depend on the policy alone, without those that report no failure:
// annotations leave them out.
func ofSpec(conditions []metav1.Condition) []metav1.Condition {
	return slices.DeleteFunc(withoutNoFailure(conditions), func(c metav1.Condition) bool { return c.Type == removedType || isEnforced(c) })
}
