package compile

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestNoHashIsAReservedID: a pod with a reserved ID would not count as a pod, or would lose its
// connections whenever the agent starts.
func TestNoHashIsAReservedID(t *testing.T) {
	for hash := range uint32(2 * policy.FirstID) {
		if id := unreserved(hash); id < policy.FirstID || hash >= policy.FirstID && id != hash {
			t.Errorf("a pod whose hash is %d gets ID %d", hash, id)
		}
	}
}

func TestPodIDIsUnique(t *testing.T) {
	pod := func(uid types.UID, namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: namespace, Name: name}}
	}
	ids := map[uint32]bool{}
	for _, p := range []*corev1.Pod{pod("1", "x", "a"), pod("2", "x", "a"), pod("1", "y", "a"), pod("1", "x", "b"), pod("", "x", "a"), pod("", "xa", "")} {
		id := NewPod(p).Endpoint.ID
		if id < policy.FirstID || ids[id] {
			t.Errorf("%s/%s (%s) has ID %d: it is reserved, or another pod's", p.Namespace, p.Name, p.UID, id)
		}
		ids[id] = true
		p.Labels, p.Status.PodIP = map[string]string{"app": "a"}, "10.0.0.1"
		if got := NewPod(p).Endpoint.ID; got != id {
			t.Errorf("%s/%s: the ID changes with the pod's state", p.Namespace, p.Name)
		}
	}
}
