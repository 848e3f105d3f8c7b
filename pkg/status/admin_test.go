package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// The resources of the admin kinds.
const (
	anps  = "adminnetworkpolicies"
	banps = "baselineadminnetworkpolicies"
	cnps  = "clusternetworkpolicies"
)

var adminKinds = []string{anps, banps, cnps}

// adminServer returns a server that serves the admin kinds.
func adminServer(p statustest.Behavior) *statustest.Server {
	s := statustest.NewServer(p)
	for _, resource := range adminKinds {
		s.Install(resource)
	}
	return s
}

// required are the required fields of a spec of each kind.
var required = map[string]string{
	anps:  `{priority: 1, subject: {namespaces: {}}}`,
	banps: `{subject: {namespaces: {}}}`,
	cnps:  `{tier: Admin, priority: 1, subject: {namespaces: {}}}`,
}

// admin returns a policy of an admin kind. Required fields that are not in spec are
// added.
func admin(t *testing.T, resource, name, spec string) *unstructured.Unstructured {
	t.Helper()
	var fields map[string]any
	for _, text := range []string{required[resource], spec} {
		if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
			t.Fatalf("policy %s: %v", name, err)
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	u.SetName(name)
	return u
}

// Specs that are valid in all admin kinds.
const (
	// supported is enforced as written.
	supported = `{egress: [{action: Deny, to: [{namespaces: {}}]}]}`
	// badCIDR has a malformed CIDR.
	badCIDR = `{egress: [{action: Deny, to: [{networks: ["300.0.0.0/8"]}]}]}`
	// badSubject has a malformed selector in its subject.
	badSubject = `{subject: {namespaces: {matchLabels: {a: "?"}}}}`
)

// adminStatus returns our conditions in the status of an admin policy.
func adminStatus(s *statustest.Server, resource, name string) []metav1.Condition {
	return (&subresource{}).Read(s.Of(resource).Policy("", name))
}

func TestAdminPolicyConditions(t *testing.T) {
	for _, tc := range []struct{ resource, name, spec, want string }{
		{anps, "supported", `{ingress: [{action: Allow, from: [{namespaces: {}}], ports: [{portRange: {start: 80, end: 90}}]}]}`, "Accepted @1"},
		{anps, "range", `{ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portRange: {start: 90, end: 80}}]}]}`, "Accepted PartialFailure/InvalidPort @1"},
		{anps, "protocol", `{ingress: [{action: Allow, from: [{namespaces: {}}], ports: [{portNumber: {protocol: ICMP, port: 1}}]}]}`, "Accepted PartialFailure/UnsupportedProtocol @1"},
		{anps, "networks", badCIDR, "Accepted PartialFailure/InvalidCIDR @1"},
		{anps, "names", `{egress: [{action: Deny, to: [{domainNames: [a.test]}]}]}`, "Accepted PartialFailure/FeatureNotSupported @1"},
		{anps, "worst", `{egress: [{action: Deny, to: [{domainNames: [a.test]}]}, {action: Log, to: [{}]}]}`, "Accepted PartialFailure/InvalidPeer @1"},
		{anps, "subject", badSubject, "Failure/InvalidSelector @1"},
		{banps, "default", badCIDR, "Accepted PartialFailure/InvalidCIDR @1"},
		{banps, "other", supported, "Failure/FeatureNotSupported @1"},
		{cnps, "supported", supported, "Accepted @1"},
		{cnps, "tier", `{tier: Top}`, "Failure/FeatureNotSupported @1"},
		{cnps, "range", `{ingress: [{action: Accept, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 90, end: 80}}}}]}]}`, "Accepted PartialFailure/InvalidPort @1"},
	} {
		t.Run(tc.resource+" "+tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := adminServer(statustest.Behavior{})
				s.Of(tc.resource).Create(admin(t, tc.resource, tc.name, tc.spec))
				start(t, s, setting{admin: true})
				settle(25 * time.Minute) // two resyncs
				wantBrief(t, adminStatus(s, tc.resource, tc.name), tc.want)
				if writes := s.Writes(); len(writes) != 1 || writes[0].Resource != tc.resource+"/status" {
					t.Errorf("writes %v, want one to the status", writes)
				}
				if got := len(s.Events()); got != 0 {
					t.Errorf("%d Events about a policy with a status, want none", got)
				}
			})
		})
	}
}

// A field of a proposal without its gate is a condition that names the gate, and a gate whose fields
// the server lacks is an error that says what to do.
func TestFieldsOfProposals(t *testing.T) {
	const networks = `{ingress: [{action: Deny, from: [{networks: [192.0.2.0/24]}]}]}`
	withGate := withoutEndPort
	withGate.IngressByAddress = true
	for _, tc := range []struct {
		name       string
		features   compile.Features
		conditions string
		errors     int
	}{
		{"without the gate", withoutEndPort, "Accepted PartialFailure/FeatureNotSupported @1", 0},
		{"with the gate", withGate, "Accepted @1", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := adminServer(statustest.Behavior{})
				s.Of(cnps).Create(admin(t, cnps, "p", networks))

				w := start(t, s, setting{admin: true, features: tc.features})
				settle(time.Hour)

				conditions := adminStatus(s, cnps, "p")
				wantBrief(t, conditions, tc.conditions)
				gate := slices.ContainsFunc(conditions, func(c metav1.Condition) bool {
					return strings.Contains(c.Message, "--feature-gates=IngressByAddress=true")
				})
				if gate != (tc.errors == 0) {
					t.Errorf("conditions %v", conditions)
				}
				if got := w.logged("lacks fields of proposals"); got != tc.errors {
					t.Errorf("%d errors, want %d: %s", got, tc.errors, w.log())
				}
			})
		})
	}
}

func TestMetricsByKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := adminServer(statustest.Behavior{})
		s.Create(netpol(t, "p", clean))
		s.Of(anps).Create(admin(t, anps, "p", badCIDR))
		s.Of(cnps).Create(admin(t, cnps, "p", badCIDR))
		s.Of(cnps).Create(admin(t, cnps, "q", badCIDR))
		w := start(t, s, setting{admin: true})
		settle(time.Minute)
		for kind, want := range map[string]float64{"NetworkPolicy": 0, "AdminNetworkPolicy": 1, "BaselineAdminNetworkPolicy": 0, "ClusterNetworkPolicy": 2} {
			if got := testutil.ToFloat64(w.metrics.conditions.WithLabelValues(kind, PartialFailure, "InvalidCIDR")); got != want {
				t.Errorf("%s: the metric counts %v, want %v", kind, got, want)
			}
		}
	})
}

func isDiscovery(r statustest.Request) bool { return r.Verb == "discover" }

// isAbout returns a function that reports whether a request is for a resource.
func isAbout(resource string) func(statustest.Request) bool {
	return func(r statustest.Request) bool { return strings.HasPrefix(r.Resource, resource) }
}

func TestKindNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Create(netpol(t, "p", ranges))
		w := start(t, s, setting{admin: true})
		settle(time.Hour)
		wantBrief(t, annotated(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
		if got := w.logged("Kind not served, waiting"); got != len(adminKinds) || strings.Contains(w.log(), "E0") {
			t.Errorf("%d log messages about kinds that are not served, want %d and no error:\n%s", got, len(adminKinds), w.log())
		}
		if got := s.Requests(isAbout(anps)); len(got) != 0 {
			t.Errorf("requests for a kind that is not served: %v", got)
		}
		if got := len(s.Requests(isDiscovery)); got > (2+2+3)*361+10 {
			t.Errorf("%d discovery requests in an hour for three kinds", got)
		}
		if got := w.metrics.oldest(); got != 0 {
			t.Errorf("a policy has waited %v s", got)
		}
	})
}

func TestKindInstalledAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		w := start(t, s, setting{admin: true})
		settle(time.Hour)
		for round := range 3 {
			s.Install(anps)
			for i := range 10 {
				s.Of(anps).Create(admin(t, anps, fmt.Sprintf("p%d", i), badCIDR))
			}
			settle(30 * time.Second)
			for i := range 10 {
				wantBrief(t, adminStatus(s, anps, fmt.Sprintf("p%d", i)), "Accepted PartialFailure/InvalidCIDR @1")
			}
			if got := len(s.Writes()); got != 10*(round+1) {
				t.Errorf("round %d: %d writes, want 10 in each", round, got)
			}
			if got := testutil.ToFloat64(w.metrics.conditions.WithLabelValues("AdminNetworkPolicy", PartialFailure, "InvalidCIDR")); got != 10 {
				t.Errorf("round %d: the metric counts %v policies, want 10", round, got)
			}
			s.SetBehavior(statustest.Behavior{Refuse: refuse(isPatch, statustest.Refused)})
			s.Of(anps).Create(admin(t, anps, "unwritten", badCIDR))
			settle(time.Second)
			s.Uninstall(anps)
			s.SetBehavior(statustest.Behavior{})
			settle(time.Minute)
			before := len(s.Requests(isAbout(anps)))
			settle(time.Hour)
			if got := len(s.Requests(isAbout(anps))) - before; got != 0 {
				t.Errorf("%d requests for a kind that was removed", got)
			}
			if got := testutil.CollectAndCount(w.metrics.conditions); got != 0 {
				t.Errorf("the metric has %d series of removed policies", got)
			}
			if got := w.metrics.oldest(); got != 0 {
				t.Errorf("a removed policy has waited %v s", got)
			}
		}
		if got := w.logged("Kind not served, waiting"); got != len(adminKinds)+3 {
			t.Errorf("%d log messages about kinds that are not served, want %d:\n%s", got, len(adminKinds)+3, w.log())
		}
		if got := strings.Count(w.log(), "E0"); got > 3 { // one for each refused write
			t.Errorf("%d errors in the log:\n%s", got, w.log())
		}
	})
}

// If discovery fails, the list finds out which kinds are served.
func TestKindsWithoutDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Refuse: refuse(isDiscovery, statustest.Forbidden)})
		s.Install(cnps)
		s.Create(netpol(t, "p", ranges))
		s.Of(cnps).Create(admin(t, cnps, "p", badCIDR))
		w := start(t, s, setting{admin: true})
		settle(time.Hour)
		wantBrief(t, annotated(s, "p"), "Accepted PartialFailure/FeatureNotSupported @1")
		if got := testutil.ToFloat64(w.metrics.conditions.WithLabelValues("ClusterNetworkPolicy", PartialFailure, "InvalidCIDR")); got != 1 {
			t.Errorf("the metric counts %v policies, want 1", got)
		}
		if got := w.logged("Kind not served, waiting"); got != 2 {
			t.Errorf("%d log messages about kinds that are not served, want 2:\n%s", got, w.log())
		}
	})
}

func TestServerFaultsWithAdminPolicies(t *testing.T) {
	isStatus := func(r statustest.Request) bool { return isPatch(r) && r.Resource == anps+"/status" }
	isList := func(r statustest.Request) bool { return r.Resource == anps }
	for _, tc := range []struct {
		name   string
		server statustest.Behavior
		log    int // maximum number of logged errors in an hour
		events int // created in that hour
	}{
		{"conflict", statustest.Behavior{Refuse: refuse(isStatus, statustest.Conflict)}, 0, 0},
		{"refused by admission", statustest.Behavior{Refuse: refuse(isStatus, statustest.Refused)}, 30, 3},
		{"invalid", statustest.Behavior{Refuse: refuse(isStatus, statustest.Invalid)}, 30, 3},
		{"no right to write", statustest.Behavior{Refuse: refuse(isStatus, statustest.Forbidden)}, 1, 3},
		{"no right to read", statustest.Behavior{Refuse: refuse(isList, statustest.Forbidden)}, 60, 0},
		{"down", statustest.Behavior{Down: true}, 70, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := adminServer(tc.server)
				for i := range 3 {
					s.Of(anps).Create(admin(t, anps, fmt.Sprintf("p%d", i), badCIDR))
				}
				w := start(t, s, setting{admin: true})
				settle(time.Hour)
				if got := len(s.Writes()); got != 0 {
					t.Fatalf("%d writes in spite of the fault, want none", got)
				}
				if got := strings.Count(w.log(), "E0"); got > tc.log {
					t.Errorf("%d errors in the log, want at most %d:\n%s", got, tc.log, w.log())
				}
				if got := len(s.Events()); got != tc.events {
					t.Errorf("%d Events, want %d", got, tc.events)
				}
				s.SetBehavior(statustest.Behavior{Delay: 2 * time.Second})
				settle(30 * time.Minute)
				for i := range 3 {
					wantBrief(t, adminStatus(s, anps, fmt.Sprintf("p%d", i)), "Accepted PartialFailure/InvalidCIDR @1")
				}
				if got := len(s.Writes()); got != 3 {
					t.Errorf("%d writes, want 3", got)
				}
			})
		})
	}
}

// Events about cluster-scoped policies are where kubectl looks for them.
func TestAdminPolicyEventsAreInDefaultNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := adminServer(statustest.Behavior{})
		s.Of(cnps).Create(admin(t, cnps, "p", badCIDR))
		start(t, s, setting{admin: true, noSinks: true})
		settle(time.Minute)
		all := events(t, s)
		if len(all) != 1 || all[0].Namespace != "default" || all[0].Regarding.Kind != "ClusterNetworkPolicy" || all[0].Regarding.Namespace != "" || all[0].Reason != "InvalidCIDR" {
			t.Errorf("Events %+v, want one about the policy", all)
		}
	})
}

func TestAdminPolicyConditionsOfOtherManagersAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := adminServer(statustest.Behavior{})
		theirs := map[string]any{"type": "Programmed", "status": "True", "reason": "Yes", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
		for _, resource := range adminKinds {
			p := admin(t, resource, "default", badCIDR)
			_ = unstructured.SetNestedSlice(p.Object, []any{theirs}, "status", "conditions")
			s.Of(resource).Create(p)
		}
		w := start(t, s, setting{admin: true})
		settle(time.Minute)
		w.stop()
		conditions := func(resource string) []any {
			all, _, _ := unstructured.NestedSlice(s.Of(resource).Policy("", "default").Object, "status", "conditions")
			return all
		}
		for _, resource := range adminKinds {
			if got := conditions(resource); len(got) != 4 || !slices.ContainsFunc(got, func(c any) bool { return fmt.Sprint(c) == fmt.Sprint(theirs) }) {
				t.Errorf("%s: conditions %v, want ours and %v", resource, got, theirs)
			}
		}
		cleaner, logger := newWriter(t, s, setting{admin: true})
		if err := cleaner.Cleanup(klog.NewContext(context.Background(), logger)); err != nil {
			t.Fatal(err)
		}
		for _, resource := range adminKinds {
			if got := conditions(resource); fmt.Sprint(got) != fmt.Sprint([]any{theirs}) {
				t.Errorf("%s: after cleanup conditions %v, want %v", resource, got, theirs)
			}
		}
	})
}

func TestCleanupSkipsKindsNotServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{})
		s.Install(cnps)
		s.Create(netpol(t, "p", clean))
		s.Of(cnps).Create(admin(t, cnps, "p", badCIDR))
		w := start(t, s, setting{admin: true})
		settle(time.Minute)
		w.stop()
		cleaner, logger := newWriter(t, s, setting{admin: true})
		if err := cleaner.Cleanup(klog.NewContext(context.Background(), logger)); err != nil {
			t.Error(err)
		}
		wantBrief(t, annotated(s, "p"), "none")
		wantBrief(t, adminStatus(s, cnps, "p"), "none")
	})
}

// Conditions are written through the best version that is served, whatever it was before.
func TestVersionsOfAKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := adminServer(statustest.Behavior{})
		w := start(t, s, setting{admin: true})
		for i, phase := range []struct {
			served []string
			want   string // the version of the writes
		}{
			{[]string{"v1alpha2"}, "v1alpha2"},
			{[]string{"v1alpha2", "v1beta1"}, "v1alpha2 v1beta1"}, // whichever it reads
			{[]string{"v1beta1"}, "v1beta1"},
			{[]string{"v1beta1", "v1"}, "v1beta1"},
			{[]string{"v1"}, ""},
			{[]string{"v1alpha2"}, "v1alpha2"},
		} {
			s.ServeVersions(cnps, phase.served...)
			settle(time.Minute)
			name, before := fmt.Sprintf("p%d", i), len(s.Writes())
			s.Of(cnps).Create(admin(t, cnps, name, badCIDR))
			settle(time.Minute)
			if phase.want != "" {
				wantBrief(t, adminStatus(s, cnps, name), "Accepted PartialFailure/InvalidCIDR @1")
			}
			for _, r := range s.Writes()[before:] {
				if version := strings.TrimPrefix(r.GroupVersion, "policy.networking.k8s.io/"); phase.want == "" || !strings.Contains(phase.want, version) {
					t.Errorf("%v: written through %s", phase.served, version)
				}
			}
		}
		const want = "clusternetworkpolicies.policy.networking.k8s.io are served in version v1 only, and read in v1beta1 or v1alpha2"
		if got := strings.Count(w.log(), want); got != 1 {
			t.Errorf("logged %d times, want once:\n%s", got, w.log())
		}
	})
}
