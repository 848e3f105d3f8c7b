package flows

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// newExported is newRecorder with a registry that refuses inconsistent metrics.
func newExported() (*Recorder, *prometheus.Registry, *time.Duration) {
	reg := prometheus.NewPedanticRegistry()
	r := New(Config{Node: "node-1", Registerer: reg})
	since := new(time.Duration)
	r.since = func() time.Duration { return *since }
	return r, reg, since
}

// series returns the samples of a metric by the values of their labels.
func series(t *testing.T, reg *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.Metric {
			label := map[string]string{}
			for _, l := range m.Label {
				label[l.GetName()] = l.GetValue()
			}
			found[fmt.Sprintf("%s %s/%s %s %s %s", label["kind"], label["namespace"], label["policy"], label["direction"], label["rule"], label["verdict"])] = value(m)
		}
	}
	return found
}

func value(m *dto.Metric) float64 { return m.GetCounter().GetValue() }

// Each packet counts for the rule that decided it, whether the agent or the kernel gave the
// verdict.
func TestDecisionsCountForTheirRule(t *testing.T) {
	later := allowed
	later.Policy = &policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: "db", Generation: 2}
	later.Tier = policy.AdminTier // of a kind whose policies can change their tier
	rule := allowed
	rule.Rule = 1
	open := policy.Decision{Action: policy.Allow, Direction: policy.Egress, Reason: policy.NotSelected}
	const byRule = "NetworkPolicy shop/db ingress 2 allow"
	for _, tc := range []struct {
		name                    string
		decide                  func(*Recorder)
		wantDecided, wantAudits map[string]float64
	}{
		{"packets of several flows", func(r *Recorder) {
			decide(r, tcp(web, db, 1), allowed, clusterOf(2), 0)
			decide(r, tcp(other, db, 2), allowed, clusterOf(2), 0)
		}, map[string]float64{byRule: 2}, map[string]float64{}},
		{"remembered by the kernel", func(r *Recorder) {
			decide(r, tcp(web, db, 1), allowed, clusterOf(2), 0)
			r.byKernel(packet.Class{Src: web, Dst: db, Proto: packet.TCP, Port: 1}, allowed, clusterOf(2), 7)
		}, map[string]float64{byRule: 8}, map[string]float64{}},
		{"another generation and tier of the policy", func(r *Recorder) {
			decide(r, tcp(web, db, 1), allowed, clusterOf(2), 0)
			decide(r, tcp(web, db, 1), later, clusterOf(2), 0)
		}, map[string]float64{byRule: 2}, map[string]float64{}},
		{"another rule", func(r *Recorder) {
			decide(r, tcp(web, db, 1), rule, clusterOf(2), 0)
			decide(r, tcp(web, db, 1), allowed, clusterOf(2), 0)
		}, map[string]float64{byRule: 1, "NetworkPolicy shop/db ingress 1 allow": 1}, map[string]float64{}},
		{"isolated", func(r *Recorder) { decide(r, tcp(web, db, 1), denied, clusterOf(2), 0) },
			map[string]float64{"NetworkPolicy shop/db ingress none deny": 1}, map[string]float64{}},
		{"no policy", func(r *Recorder) { decide(r, tcp(web, db, 1), open, clusterOf(2), 0) }, map[string]float64{}, map[string]float64{}},
		{"audited policies", func(r *Recorder) { r.decide(tcp(web, db, 1), &open, clusterOf(2), &denied, r.epoch) },
			map[string]float64{}, map[string]float64{"NetworkPolicy shop/db ingress none deny": 1}},
		{"audited policies of which none decides", func(r *Recorder) { r.decide(tcp(web, db, 1), &denied, clusterOf(2), &open, r.epoch) },
			map[string]float64{"NetworkPolicy shop/db ingress none deny": 1}, map[string]float64{" / egress none allow": 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, reg, _ := newExported()
			tc.decide(r)
			if diff := cmp.Diff(tc.wantDecided, series(t, reg, "netpol_rule_decisions_total")); diff != "" {
				t.Errorf("decisions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.wantAudits, series(t, reg, "netpol_audit_packets_total")); diff != "" {
				t.Errorf("decisions of audited policies (-want +got):\n%s", diff)
			}
		})
	}
}

// While policies come and go, memory and series are bounded, every packet is counted, and
// known rules keep their counts.
func TestRulesAreBounded(t *testing.T) {
	r, reg, _ := newExported()
	s := clusterOf(2)
	r.decide(tcp(web, db, 1), &allowed, s, &denied, r.epoch)
	const packets = 3 * maxRules
	for i := range packets {
		d := allowed
		d.Policy = &policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: fmt.Sprint(i)}
		would := denied
		would.Policy = d.Policy
		r.decide(tcp(web, db, 1), &d, s, &would, r.epoch)
		r.drain() // a shard has room for few decisions about one class
	}
	r.decide(tcp(web, db, 1), &allowed, s, &denied, r.epoch)
	for name, of := range map[string]struct{ first, other string }{
		"netpol_rule_decisions_total": {"NetworkPolicy shop/db ingress 2 allow", "other /other ingress none allow"},
		"netpol_audit_packets_total":  {"NetworkPolicy shop/db ingress none deny", "other /other ingress none deny"},
	} {
		t.Run(name, func(t *testing.T) {
			got := series(t, reg, name)
			sum := 0.0
			for n := range maps.Values(got) {
				sum += n
			}
			if sum != packets+2 {
				t.Errorf("%v packets are counted of %d", sum, packets+2)
			}
			if len(got) != maxRules+1 || got[of.first] != 2 || got[of.other] < 1 {
				t.Errorf("%d series, %v of the first rule and %v of others", len(got), got[of.first], got[of.other])
			}
		})
	}
}

// Records of rules have the agent's start and the times of decisions, even if the clock is
// set.
func TestReadRules(t *testing.T) {
	for _, jump := range []time.Duration{0, time.Hour, -100000 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			r, wall, since := newRecorder()
			r.cfg.AuditOnly = true
			decide(r, tcp(web, db, 1), denied, clusterOf(2), time.Second)
			decide(r, tcp(web, db, 1), allowed, clusterOf(2), 2*time.Second)
			r.drain()
			decide(r, tcp(web, db, 1), allowed, clusterOf(2), 5*time.Second)
			*wall = wall.Add(jump)
			*since = time.Minute
			at := func(d time.Duration) *time.Time { t := wall.Add(d - time.Minute); return &t }
			records := r.Read(Filter{Rules: true})
			if a := records[0]; a.Type != TypeAgent || !a.Time.Equal(*wall) || !a.Started.Equal(*at(0)) || !a.AuditOnly {
				t.Errorf("the record of the agent is %+v of %+v", a.Summary, a)
			}
			two := 2
			policy := &Policy{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}
			want := []Record{
				{Type: TypeRule, Node: "node-1", Decision: Decision{Verdict: Deny, Direction: "ingress", Policy: policy}, Count: 1, First: at(time.Second), Last: at(time.Second)},
				{Type: TypeRule, Node: "node-1", Decision: Decision{Verdict: Allow, Direction: "ingress", Policy: policy, Rule: &two}, Count: 2, First: at(2 * time.Second), Last: at(5 * time.Second)},
			}
			if diff := cmp.Diff(want, records[1:]); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			if slices.ContainsFunc(r.Read(Filter{}), func(r Record) bool { return r.Type == TypeRule }) {
				t.Error("rules are among the flows")
			}
		})
	}
}
