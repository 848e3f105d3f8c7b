package main

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Nodes count as clean only once the controller has seen the DaemonSet and every pod is ready.
func TestReadyOnAllNodes(t *testing.T) {
	for _, tc := range []struct {
		name           string
		observed       int64
		desired, ready int32
		want           bool
	}{
		{"not seen yet", 0, 0, 0, false},
		{"not ready", 1, 3, 2, false},
		{"ready", 1, 3, 3, true},
		{"no node", 1, 0, 0, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Status: appsv1.DaemonSetStatus{
				ObservedGeneration: tc.observed, DesiredNumberScheduled: tc.desired, NumberReady: tc.ready,
			}}

			if got := readyOnAllNodes(d); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
