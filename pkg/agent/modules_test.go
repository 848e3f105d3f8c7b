package agent

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// TestModulesFollowSnapshots: each module prepares for a snapshot before it decides, and withdraws what an
// earlier one decided after nftables has it.
func TestModulesFollowSnapshots(t *testing.T) {
	pod := netip.MustParseAddr("10.244.1.2")
	a := newTestAgent(t, prometheus.NewRegistry())
	var events []string
	steered := func(s *policy.Snapshot) bool { latest, _ := a.steering.latest(); return latest == s }
	first, second := administered(pod), administered(pod)
	a.parts = []module.Part{{}, {
		Prepare: func(s *policy.Snapshot) {
			events = append(events, "prepare")
			if _, _, deciding := a.enforcer.EvaluateOpened(packet.Packet{}, false); deciding == s || steered(s) {
				t.Error("a module prepares for a snapshot that decides")
			}
		},
		Withdraw: func(_ context.Context, addrs []netip.Addr, all bool) {
			events = append(events, "withdraw")
			if !steered(second) || !all && !slices.Contains(addrs, pod) {
				t.Errorf("a module withdraws %v, all: %v, before the second snapshot is effective", addrs, all)
			}
		},
	}}
	_, ctx := ktesting.NewTestContext(t)
	a.publish(ctx, first, time.Now(), true)
	a.publish(ctx, second, time.Now(), true)
	if want := []string{"prepare", "prepare", "withdraw"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}

// TestModulesBeginBeforeTheCluster, and the agent is ready if they are.
func TestModulesBeginBeforeTheCluster(t *testing.T) {
	a := newTestAgent(t, prometheus.NewRegistry())
	begun := false
	a.cfg.Modules = []module.Module{{Name: "late"}}
	a.parts = []module.Part{{Begin: func(context.Context) { begun = true }, Ready: func() error { return errors.New("not yet") }}}
	l := append(a.modules(), stage{name: "cluster", begin: func(context.Context) {
		if !begun {
			t.Error("the cluster is read before a module begins")
		}
	}})
	if err := l.run(t.Context()); err != nil || !begun {
		t.Errorf("begun: %v, error %v", begun, err)
	}
	if err := l.ready(); err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("ready although a module is not: %v", err)
	}
}

// TestOneModuleHasAHook: two modules with the same single hook are an error that names them and the hook.
func TestOneModuleHasAHook(t *testing.T) {
	all := reflect.TypeFor[module.Single]()
	filled := map[string]any{
		"Classes": &module.Classes{}, "Learned": learnedNames{}, "Observe": &module.Observe{},
		"InForce": func(context.Context) *inforce.Answer { return nil },
		"Admit":   func(context.Context, *x509.Certificate) error { return nil },
	}
	of := func(name string, hooks ...string) module.Module {
		var s module.Single
		for _, hook := range hooks {
			reflect.ValueOf(&s).Elem().FieldByName(hook).Set(reflect.ValueOf(filled[hook]))
		}
		return module.Module{Name: name, New: func(*module.Core) (module.Part, error) { return module.Part{Single: s}, nil }}
	}
	for i := range all.NumField() {
		hook := all.Field(i).Name
		for _, other := range slices.Sorted(maps.Keys(filled)) {
			a := newTestAgent(t, prometheus.NewRegistry())
			a.cfg.Modules = []module.Module{of("first", hook), of("none"), of("second", other)}
			err := a.newParts()
			switch {
			case other != hook && err != nil:
				t.Errorf("%s and %s: %v", hook, other, err)
			case other == hook && (err == nil || !strings.Contains(err.Error(), "modules first and second both have "+hook)):
				t.Errorf("%s twice: %v", hook, err)
			}
		}
	}
}

// TestOneModuleServesAPattern: two modules that serve the same requests are an error that names them and
// the pattern.
func TestOneModuleServesAPattern(t *testing.T) {
	serving := func(name, pattern string) module.Module {
		return module.Module{Name: name, New: func(*module.Core) (module.Part, error) {
			return module.Part{Serve: []module.Handler{{To: module.Socket, Pattern: pattern}}}, nil
		}}
	}
	for pattern, want := range map[string]string{
		"GET /flows": "",
		"GET /names": "modules first and second both serve GET /names",
		"GET /table": "modules agent and second both serve GET /table",
	} {
		a := newTestAgent(t, prometheus.NewRegistry())
		a.cfg.Modules = []module.Module{serving("first", "GET /names"), serving("second", pattern)}
		if err := a.newParts(); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%s: %v, want %q", pattern, err, want)
		}
	}
}

// TestAgentsOfNodesOnly: an agent of a node that does not exist is refused before a module is asked, and so
// is every agent if no module admits any.
func TestAgentsOfNodesOnly(t *testing.T) {
	var asked []string
	by := func(_ context.Context, c *x509.Certificate) error {
		asked = append(asked, c.Subject.CommonName)
		return nil
	}
	exists := func(name string) bool { return name == "node-1" }
	for _, tc := range []struct {
		node string
		by   func(context.Context, *x509.Certificate) error
		want bool
	}{{"node-1", nil, false}, {"node-1", by, true}, {"node-2", by, false}} {
		if err := admit(t.Context(), &x509.Certificate{Subject: pkix.Name{CommonName: tc.node}}, exists, tc.by); (err == nil) != tc.want {
			t.Errorf("%s: %v", tc.node, err)
		}
	}
	if !slices.Equal(asked, []string{"node-1"}) {
		t.Errorf("asked for %q", asked)
	}
}
