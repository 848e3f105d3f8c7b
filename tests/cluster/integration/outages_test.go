package integration

import (
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

// TCP regards a connection without any packets as healthy for hours.
func TestSilentConnectionsAreDetected(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		s := newShop(t, plane)
		l, config := through(t, plane)
		v := newView(t, config, s.node, s.guarded()...)
		v.eventually(s.guarded()...)
		l.Silence()
		s.createPolicy("more", "client", fromApp("visitor"))
		v.eventually(denied(s.web, s.client, port))
	})
}

// The kernel of a stopped server still acknowledges packets, so TCP sees no fault.
func TestAStoppedAPIServerIsNoticed(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		s := newShop(t, plane)
		l, config := through(t, plane)
		v := newView(t, config, s.node, s.guarded()...)
		v.eventually(s.guarded()...)
		again := l.Next()
		if err := plane.PauseAPIServer(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-again:
		case <-time.After(patience):
			t.Error("the agent did not connect again")
		}
		if err := plane.ResumeAPIServer(); err != nil {
			t.Fatal(err)
		}
		s.createPolicy("more", "client", fromApp("visitor"))
		v.eventually(denied(s.web, s.client, port))
	})
}

func TestAPIServerRestartChangesNoDecision(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		s := newShop(t, plane)
		v := newView(t, plane.Admin(), s.node, s.guarded()...)
		v.eventually(s.guarded()...)
		restart(t, plane, func() { v.always() })
		s.createPolicy("more", "client", fromApp("visitor"))
		v.eventually(denied(s.web, s.client, port))
	})
}

// restart stops the API server, calls a function, and starts the server again with more
// flags.
func restart(t *testing.T, plane *controlplane.ControlPlane, without func(), more ...string) {
	t.Helper()
	if err := plane.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	without()
	if err := plane.StartAPIServer(t.Context(), more...); err != nil {
		t.Fatal(err)
	}
}

// A disconnected agent resumes its watches. If the server has compacted the changes
// since, the agent must list all objects again, and remove those that were deleted
// meanwhile without an event.
func TestCompactedChangesAreFound(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		s := newShop(t, plane)
		l, config := through(t, plane)
		var asked requests
		v := newView(t, asked.note(config), s.node, allowed(s.client, s.web, port))
		v.eventually(s.guarded()...)
		s.createPolicy("more", "client", fromApp("visitor"))
		v.eventually(denied(s.web, s.client, port))
		lists := func() int { return len(asked.matching(func(q request) bool { return q.whole })) }
		before := lists()

		l.Down()
		s.deletePolicy(t.Context(), "more")
		s.deletePod(t.Context(), "visitor")
		s.createPod("client-2", s.otherNode, s.visitor) // the address is used again
		s.labelPod("client-2", "client")
		if err := plane.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
		restart(t, plane, func() {}) // without, its cache would know
		l.Up()

		v.eventually(allowed(s.web, s.client, port), allowed(s.visitor, s.web, port), allowed(s.client, s.web, port))
		if lists() == before {
			t.Error("the watches went on, nothing was forgotten")
		}
	})
}
