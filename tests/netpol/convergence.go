package netpol

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Change is the kind of change that a step makes.
type Change string

// The kinds of change. A step that makes several counts as the first of them in this order.
const (
	ChangeNewPod         Change = "new pod"
	ChangeDeletedPod     Change = "deleted pod"
	ChangeNamespaceLabel Change = "namespace label"
	ChangePodLabel       Change = "pod label"
	ChangePolicy         Change = "policy"
)

// changeBetween returns the kind of change from one state to the next, "" if nothing changes.
func changeBetween(before, after *State) Change {
	pods, namespaces := byName(before.Pods), byName(before.Namespaces)
	var changes []Change
	for _, pod := range after.Pods {
		switch old := pods[PodName(pod)]; {
		case old == nil || len(pod.Status.PodIPs) == 0:
			changes = append(changes, ChangeNewPod) // RecreatePod has removed the addresses
		case !maps.Equal(old.GetLabels(), pod.Labels):
			changes = append(changes, ChangePodLabel)
		}
	}
	if len(after.Pods) < len(before.Pods) {
		changes = append(changes, ChangeDeletedPod)
	}
	for _, namespace := range after.Namespaces {
		if old := namespaces["/"+namespace.Name]; old != nil && !maps.Equal(old.GetLabels(), namespace.Labels) {
			changes = append(changes, ChangeNamespaceLabel)
		}
	}
	if !slices.Equal(before.Policies, after.Policies) ||
		!slices.Equal(before.AdminNetworkPolicies, after.AdminNetworkPolicies) ||
		!slices.Equal(before.BaselineAdminNetworkPolicies, after.BaselineAdminNetworkPolicies) ||
		!slices.Equal(before.ClusterNetworkPolicies, after.ClusterNetworkPolicies) ||
		!slices.Equal(before.Proposed, after.Proposed) {
		changes = append(changes, ChangePolicy)
	}
	for _, kind := range allChanges {
		if slices.Contains(changes, kind) {
			return kind
		}
	}
	return ""
}

var allChanges = []Change{ChangeNewPod, ChangeDeletedPod, ChangeNamespaceLabel, ChangePodLabel, ChangePolicy}

// byName returns objects by "namespace/name".
func byName[T metav1.Object](objects []T) map[string]metav1.Object {
	names := make(map[string]metav1.Object)
	for _, object := range objects {
		names[object.GetNamespace()+"/"+object.GetName()] = object
	}
	return names
}

// Convergence says how long changes of one kind took until every table was right. A time begins
// when the API server has accepted the change and, if there are new pods, they are ready. It ends
// with the beginning of the attempts that made the last wrong cells right, so it is as exact as
// one round of attempts is long.
type Convergence struct {
	Change  Change
	Changes int
	Times
}

// String returns, for example, "policy: right after 12 ms (p50), 80 ms (p95), 210 ms (p99), 340 ms (max), changes: 240".
func (c Convergence) String() string {
	return fmt.Sprintf("%s: right after %s, changes: %d", c.Change, c.Times, c.Changes)
}

// Times are percentiles by the nearest rank: each is the smallest time that this share of all does
// not exceed.
type Times struct{ P50, P95, P99, Max time.Duration }

// String returns, for example, "12 ms (p50), 80 ms (p95), 210 ms (p99), 340 ms (max)".
func (t Times) String() string {
	return fmt.Sprintf("%s (p50), %s (p95), %s (p99), %s (max)",
		milliseconds(t.P50), milliseconds(t.P95), milliseconds(t.P99), milliseconds(t.Max))
}

// milliseconds has one decimal below ten milliseconds.
func milliseconds(d time.Duration) string {
	if ms := float64(d) / float64(time.Millisecond); ms < 10 {
		return strconv.FormatFloat(math.Round(10*ms)/10, 'f', -1, 64) + " ms"
	}
	return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
}

// timesOf returns the zero Times if there are none.
func timesOf(all []time.Duration) Times {
	if len(all) == 0 {
		return Times{}
	}
	all = slices.Sorted(slices.Values(all))
	rank := func(percent int) time.Duration { return all[(len(all)*percent+99)/100-1] }
	return Times{rank(50), rank(95), rank(99), all[len(all)-1]}
}

// Convergence returns the times by kind of change, without the kinds that did not occur. Backends
// whose changes are effective at once have none, and so has a busy machine.
func (s *Summary) Convergence() []Convergence {
	var all []Convergence
	if s.Control().Busy() != "" {
		return nil
	}
	for _, kind := range allChanges {
		if times := s.settled[kind]; len(times) > 0 {
			all = append(all, Convergence{kind, len(times), timesOf(times)})
		}
	}
	return all
}
