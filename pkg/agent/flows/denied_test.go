package flows

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// deniedText returns what policies denied as text.
func deniedText(d *Denied) (all []string) {
	for _, p := range d.Policies {
		name := p.Kind + " " + p.Namespace + "/" + p.Name
		if p.Audited {
			name += " audited"
		}
		all = append(all, fmt.Sprintf("%s: %d of %d, %d s ago: %s", name, p.Count, p.Total, p.Ago, strings.Join(p.Pairs, "; ")))
	}
	return all
}

func wantDenied(t *testing.T, r *Recorder, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, deniedText(r.Denied())); diff != "" {
		t.Errorf("denied (-want +got):\n%s", diff)
	}
}

func TestDeniedByPolicy(t *testing.T) {
	s := clusterOf(2)
	guard := policy.Decision{Direction: policy.Egress, Tier: policy.AdminTier, Reason: policy.RuleMatched, Policy: &policy.Ref{Kind: "AdminNetworkPolicy", Name: "guard"}}
	for _, tc := range []struct {
		name   string
		decide func(*Recorder)
		want   []string
	}{
		{"nothing", func(*Recorder) {}, nil},
		{"what is allowed is not denied", func(r *Recorder) { decide(r, tcp(web, db, 80), allowed, s, 0) }, nil},
		{"of its own namespace", func(r *Recorder) {
			decide(r, tcp(web, db, 80), denied, s, 0)
			decide(r, tcp(web, db, 80), denied, s, 0)
			r.drain()
			decide(r, tcp(web, db, 81), denied, s, 0)
		}, []string{"NetworkPolicy shop/db: 3 of 3, 60 s ago: web to db-2, TCP 81; web to db-2, TCP 80"}},
		{"of another namespace, and of none", func(r *Recorder) {
			decide(r, tcp(other, db, 80), denied, s, 0)
			r.drain()
			decide(r, tcp(outside, db, 80), denied, s, 0)
		}, []string{"NetworkPolicy shop/db: 2 of 2, 60 s ago: 192.0.2.1 to db-2, TCP 80; a pod of namespace other to db-2, TCP 80"}},
		{"by a policy of the cluster", func(r *Recorder) { decide(r, tcp(web, outside, 53), guard, s, 0) },
			[]string{"AdminNetworkPolicy /guard: 1 of 1, 60 s ago: a pod of namespace shop to 192.0.2.1, TCP 53"}},
		{"by an audited one", func(r *Recorder) { r.Decided(tcp(web, db, 80), &allowed, s, &denied, r.epoch) },
			[]string{"NetworkPolicy shop/db audited: 1 of 1, 60 s ago: web to db-2, TCP 80"}},
		{"by nothing but the end of all policies", func(r *Recorder) { decide(r, tcp(web, db, 80), policy.Decision{}, s, 0) }, nil},
		{"more pairs than are named", func(r *Recorder) {
			for port := range uint16(10) {
				decide(r, tcp(web, db, 80+port), denied, s, 0)
				r.drain()
			}
		}, []string{"NetworkPolicy shop/db: 10 of 10, 60 s ago: web to db-2, TCP 89; web to db-2, TCP 88; web to db-2, TCP 87"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _, since := newRecorder()
			tc.decide(r)
			r.drain()
			*since = time.Minute
			wantDenied(t, r, tc.want...)
		})
	}
}

// Counts cover the last hour, independent of the node's clock.
func TestDeniedIsOfTheLastHour(t *testing.T) {
	r, wall, since := newRecorder()
	s := clusterOf(2)
	at := func(d time.Duration) {
		*since = d
		*wall = wall.Add(-24 * time.Hour)
	}
	decide(r, tcp(web, db, 80), denied, s, 0)
	r.drain()
	at(30 * time.Minute)
	decide(r, tcp(web, db, 80), denied, s, 30*time.Minute)
	wantDenied(t, r, "NetworkPolicy shop/db: 2 of 2, 0 s ago: web to db-2, TCP 80")
	at(29 * time.Minute) // a packet may be decided before the one that is counted first
	wantDenied(t, r, "NetworkPolicy shop/db: 2 of 2, 0 s ago: web to db-2, TCP 80")
	at(65 * time.Minute)
	wantDenied(t, r, "NetworkPolicy shop/db: 1 of 2, 2100 s ago: web to db-2, TCP 80")
	at(89*time.Minute + 59*time.Second)
	wantDenied(t, r, "NetworkPolicy shop/db: 1 of 2, 3599 s ago: web to db-2, TCP 80")
	at(90 * time.Minute)
	wantDenied(t, r)
	decide(r, tcp(web, db, 80), denied, s, 10*time.Hour)
	at(10 * time.Hour)
	wantDenied(t, r, "NetworkPolicy shop/db: 1 of 3, 0 s ago: web to db-2, TCP 80")
}

// The number of counted policies is bounded. Those that denied last stay.
func TestDeniedPoliciesAreBounded(t *testing.T) {
	r, _, since := newRecorder()
	s := clusterOf(2)
	from := func(at time.Duration) {
		for i := range 2 * bounds.DeniedPolicies {
			d := denied
			d.Policy = &policy.Ref{Kind: "NetworkPolicy", Namespace: "shop", Name: fmt.Sprintf("%v-%04d", at, i)}
			decide(r, tcp(web, db, 80), d, s, at)
			r.drain()
		}
		*since = at
		got := r.Denied().Policies
		if want := fmt.Sprintf("%v-%04d", at, bounds.DeniedPolicies); len(got) != bounds.DeniedPolicies || got[0].Name != want {
			t.Errorf("after %v there are %d policies, the first is %s; want %d, %s", at, len(got), got[0].Name, bounds.DeniedPolicies, want)
		}
	}
	from(0)
	from(DeniedWindow)
}

// A namespace with many policies, deleted ones included, displaces no policies of other
// namespaces.
func TestDeniedPoliciesOfANamespace(t *testing.T) {
	r, _, _ := newRecorder()
	s := clusterOf(2)
	deny := func(namespace, name string, audited bool) {
		d := denied
		d.Policy = &policy.Ref{Kind: "NetworkPolicy", Namespace: namespace, Name: name}
		if audited {
			r.Decided(tcp(web, db, 80), &allowed, s, &d, r.epoch)
		} else {
			decide(r, tcp(web, db, 80), d, s, 0)
		}
		r.drain()
	}
	deny("early", "db", false)
	for i := range bounds.DeniedPolicies {
		deny("evil", fmt.Sprintf("p-%04d", i), i%2 == 0)
	}
	deny("late", "db", false)
	for i := range bounds.DeniedPolicies {
		deny("evil", fmt.Sprintf("q-%04d", i), i%2 == 0)
	}
	found := map[string]int{}
	for _, p := range r.Denied().Policies {
		found[p.Namespace]++
	}
	if want := (map[string]int{"early": 1, "evil": bounds.DeniedPolicies - 2, "late": 1}); !maps.Equal(found, want) {
		t.Errorf("policies by namespace: %v, want %v", found, want)
	}
}

func TestServeDenied(t *testing.T) {
	r, _, _ := newRecorder()
	decide(r, tcp(web, db, 80), denied, clusterOf(2), 0)
	w := httptest.NewRecorder()
	r.ServeDenied(w, httptest.NewRequest(http.MethodGet, DeniedPath, nil))
	got, err := DecodeDenied(w.Body)
	if err != nil || got.Node != "node-1" || len(got.Policies) != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	for text, want := range map[string]string{
		"":                                       "EOF",
		"[]":                                     "cannot unmarshal",
		"{}":                                     "no node",
		`{"a"`:                                   "EOF",
		`{"node":"x","policies":{}}`:             "no list",
		`{"node":"x","policies":[{"count":-1}]}`: "cannot unmarshal",
		`{"node":"x","policies":[` + strings.Repeat("{},", bounds.DeniedPolicies) + `{}]}`: "more than 1024 policies",
		`{"node":"` + strings.Repeat("x", bounds.DeniedBytes) + `"}`:                       "longer than",
	} {
		if _, err := DecodeDenied(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: %v, want %s", text, err, want)
		}
	}
}
