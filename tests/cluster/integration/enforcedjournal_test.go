package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/status"
)

// revision is a generation of a policy.
type revision struct {
	name       string
	generation int64
}

// said is what the writer has said about a revision.
type said struct {
	metav1.Condition
	at time.Time
}

// journal is what has happened, in its order.
type journal struct {
	everywhere func(version string) error

	mu       sync.Mutex
	kinds    map[string]inforce.Kind // newest versions
	since    map[string]time.Time
	versions map[revision]string // where a revision began
	said     map[revision][]said
	lies     []string
}

// answer is that of an agent that enforces what the journal has.
func (j *journal) answer() (answer inforce.Answer) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, kind := range slices.Sorted(maps.Keys(j.kinds)) {
		k := j.kinds[kind]
		k.Seconds = time.Since(j.since[kind]).Seconds()
		answer.Kinds = append(answer.Kinds, k)
	}
	return answer
}

// add adds an object that has changed.
func (j *journal) add(before, now any) {
	switch now := now.(type) {
	case *corev1.Namespace:
		j.advance("Namespace", now.ResourceVersion)
	case *networkingv1.NetworkPolicy:
		j.advance("NetworkPolicy", now.ResourceVersion)
		old, _ := before.(*networkingv1.NetworkPolicy)
		j.read(old, now)
	}
}

func (j *journal) advance(kind, version string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !inforce.Reaches(j.kinds[kind].Version, version) {
		j.kinds[kind], j.since[kind] = inforce.Kind{Kind: kind, Version: version, Seen: version}, time.Now()
	}
}

// read compares what the writer says with what is so. old is nil if the policy is new.
func (j *journal) read(old, now *networkingv1.NetworkPolicy) {
	current := revision{now.Name, now.Generation}
	j.mu.Lock()
	if j.versions[current] == "" {
		j.versions[current] = now.ResourceVersion
	}
	c := enforcedIn(now)
	if before := enforcedIn(old); c == nil || before != nil && *before == *c {
		j.mu.Unlock()
		return
	}
	about := revision{now.Name, c.ObservedGeneration}
	j.said[about] = append(j.said[about], said{*c, time.Now()})
	version := j.versions[about]
	j.mu.Unlock()
	if c.Status != metav1.ConditionTrue {
		return
	}
	if err := j.everywhere(version); err != nil {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.lies = append(j.lies, fmt.Sprintf("%v: %q: %v", about, c.Message, err))
	}
}

// enforcedIn returns the condition of a policy, nil if there is none.
func enforcedIn(p *networkingv1.NetworkPolicy) *metav1.Condition {
	if p == nil {
		return nil
	}
	var conditions []metav1.Condition
	_ = json.Unmarshal([]byte(p.Annotations[status.Annotation]), &conditions) // it may have none
	if i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == status.Enforced }); i >= 0 {
		return &conditions[i]
	}
	return nil
}
