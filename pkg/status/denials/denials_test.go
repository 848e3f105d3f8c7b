package denials

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
)

func agent(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent-" + node, UID: types.UID(node), Labels: map[string]string{"app": "agent"}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

// nodes are what agents answer, and the policies of the API: all that are not gone, of the kinds
// that are listed.
type nodes struct {
	denied map[string][]flows.DeniedByPolicy
	silent map[string]bool
	gone   func(Policy) bool // nil for none

	unlisted map[string]bool
	listed   chan struct{}
}

func (n *nodes) Kinds() (kinds []string) {
	for _, kind := range []string{"NetworkPolicy", "AdminNetworkPolicy"} {
		if !n.unlisted[kind] {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

func (n *nodes) Has(p Policy) bool { return n.gone == nil || !n.gone(p) }

func (n *nodes) Listed() <-chan struct{} { return n.listed }

func (n *nodes) ask(_ context.Context, pod *corev1.Pod) (*flows.Denied, error) {
	if n.silent[pod.Spec.NodeName] {
		return nil, errors.New("connection refused")
	}
	return &flows.Denied{Node: pod.Spec.NodeName, Policies: n.denied[pod.Spec.NodeName]}, nil
}

// inBubble runs a Collector of nodes with a clock of its own. changed returns the policies
// whose texts have changed since it was called last.
func inBubble(t *testing.T, n *nodes, test func(t *testing.T, c *Collector, changed func() []string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n.listed = make(chan struct{}, 1)
		client := fake.NewClientset(agent("node-1"), agent("node-2"), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "other"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}})
		c, err := New(Config{Client: client, Namespace: "kube-system", Agents: "app=agent", Ask: n.ask, Registerer: prometheus.NewPedanticRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		var policies []string
		go func() {
			defer close(ended)
			c.Run(ctx, n, func(p Policy) { policies = append(policies, p.Kind+" "+p.String()) })
		}()
		defer func() {
			cancel()
			<-ended
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		test(t, c, func() []string {
			found := policies
			policies = nil
			return found
		})
	})
}

func next(minutes int) {
	time.Sleep(time.Duration(minutes) * interval)
	synctest.Wait()
}

var db = Policy{"NetworkPolicy", types.NamespacedName{Namespace: "shop", Name: "db"}}

func by(p Policy, count uint64, ago int64, pairs ...string) flows.DeniedByPolicy {
	return flows.DeniedByPolicy{Policy: flows.Policy{Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}, Count: count, Ago: ago, Pairs: pairs}
}

func wantText(t *testing.T, c *Collector, want string, wantKnown bool) {
	t.Helper()
	if got, known := c.Of(db); got.Message != want || known != wantKnown {
		t.Errorf("got %q, known: %v; want %q, %v", got.Message, known, want, wantKnown)
	}
}

func wantChanged(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

// A text covers all nodes, and changes when one of them has denied packets: at most once a
// minute, and never because time passes.
func TestTextsChangeWithDenials(t *testing.T) {
	n := &nodes{denied: map[string][]flows.DeniedByPolicy{
		"node-1": {by(db, 1, 30, "a to db, TCP 1")},
		"node-2": {by(db, 2, 10, "b to db, TCP 1", "a to db, TCP 1")},
	}}
	inBubble(t, n, func(t *testing.T, c *Collector, changed func() []string) {
		const first = "3 packets denied within an hour, the last at 1999-12-31T23:59:50Z: a to db, TCP 1; b to db, TCP 1."
		wantText(t, c, first, true)
		wantChanged(t, changed(), "NetworkPolicy shop/db")
		n.denied["node-1"][0].Ago, n.denied["node-2"][0].Ago = 90, 70
		next(1)
		wantText(t, c, first, true)
		wantChanged(t, changed())
		n.denied["node-1"] = []flows.DeniedByPolicy{by(db, 2, 0, "c to db, UDP 1")}
		n.denied["node-2"][0].Ago = 130
		next(1)
		wantText(t, c, "4 packets denied within an hour, the last at 2000-01-01T00:02:00Z: c to db, UDP 1; a to db, TCP 1; b to db, TCP 1.", true)
		wantChanged(t, changed(), "NetworkPolicy shop/db")
		clear(n.denied)
		next(59)
		if got, _ := c.Of(db); got.Message == "" {
			t.Error("the text is gone within an hour")
		}
		wantChanged(t, changed())
		next(1)
		wantText(t, c, "", true)
		wantChanged(t, changed(), "NetworkPolicy shop/db")
	})
}

func TestAuditedPolicy(t *testing.T) {
	audited := by(db, 1, 0)
	audited.Audited = true
	n := &nodes{denied: map[string][]flows.DeniedByPolicy{"node-1": {audited}}}
	inBubble(t, n, func(t *testing.T, c *Collector, _ func() []string) {
		wantText(t, c, "1 packet would have been denied within an hour, the last at 2000-01-01T00:00:00Z.", true)
		if got, _ := c.Of(db); !got.Audited {
			t.Error("it is reported as enforced")
		}
		n.denied["node-2"] = []flows.DeniedByPolicy{by(db, 5, 0)}
		next(1)
		wantText(t, c, "5 packets denied within an hour, the last at 2000-01-01T00:01:00Z. 1 packet would have been denied within an hour, the last at 2000-01-01T00:01:00Z.", true)
		if got, _ := c.Of(db); got.Audited {
			t.Error("it is reported as audited alone")
		}
	})
}

// Silent agents are counted. Until all have answered once, or for an hour, a policy is not
// known to have denied nothing.
func TestAgentsThatDoNotAnswer(t *testing.T) {
	n := &nodes{denied: map[string][]flows.DeniedByPolicy{}, silent: map[string]bool{"node-1": true}}
	inBubble(t, n, func(t *testing.T, c *Collector, _ func() []string) {
		wantText(t, c, "", false)
		if got := testutil.ToFloat64(c.agents.WithLabelValues("false")); got != 1 {
			t.Errorf("%v agents have not answered, want 1", got)
		}
		n.denied["node-2"] = []flows.DeniedByPolicy{by(db, 1, 0)}
		next(1)
		wantText(t, c, "1 packet denied within an hour, the last at 2000-01-01T00:01:00Z. 1 of 2 agents have not answered.", true)
		other := db
		other.Name = "other"
		if _, known := c.Of(other); known {
			t.Error("it is known that a policy denied nothing")
		}
		next(60)
		if _, known := c.Of(other); !known {
			t.Error("it is not known after an hour that a policy denied nothing")
		}
	})
}

// A policy that was awaited before all agents had answered is reported when they have.
func TestAgentsThatAnswerLate(t *testing.T) {
	n := &nodes{silent: map[string]bool{"node-1": true}}
	inBubble(t, n, func(t *testing.T, c *Collector, changed func() []string) {
		wantText(t, c, "", false)
		c.Await(db)
		next(1)
		wantChanged(t, changed())
		n.silent = nil
		next(1)
		wantChanged(t, changed(), "NetworkPolicy shop/db")
		wantText(t, c, "", true)
		next(1)
		wantChanged(t, changed())
	})
}

// Answers of agents are bounded, and no time is in the future.
func TestHostileAgents(t *testing.T) {
	lies := by(db, 1, -1000, strings.Repeat("x", 10*maxPair), "a\n\x1b[0m", "b", "c", "d")
	n := &nodes{denied: map[string][]flows.DeniedByPolicy{"node-1": {lies, by(db, 0, 0)}}}
	inBubble(t, n, func(t *testing.T, c *Collector, _ func() []string) {
		wantText(t, c, "1 packet denied within an hour, the last at 2000-01-01T00:00:00Z: a??[0m; b; "+strings.Repeat("x", maxPair)+".", true)
	})
	for name, tc := range map[string]struct {
		hostile []flows.DeniedByPolicy
		want    string
	}{
		"counts that overflow":              {[]flows.DeniedByPolicy{by(db, math.MaxUint64-1, 0)}, "18446744073709551615 packets denied"},
		"a policy twice":                    {[]flows.DeniedByPolicy{by(db, 1, 0), by(db, 1000, 0)}, "3 packets denied"},
		"pairs that are newer":              {[]flows.DeniedByPolicy{by(db, 1, -9, "l1", "l2", "l3")}, "3 packets denied within an hour, the last at 2000-01-01T00:00:00Z: l1; l2; web to db, TCP 80."},
		"names that are enormous":           {[]flows.DeniedByPolicy{by(Policy{db.Kind, types.NamespacedName{Namespace: "shop", Name: strings.Repeat("x", 1<<20)}}, 1, 0)}, "2 packets denied"},
		"a count that goes back to nothing": {[]flows.DeniedByPolicy{by(db, 0, 0)}, "2 packets denied"},
	} {
		t.Run(name, func(t *testing.T) {
			n := &nodes{
				denied: map[string][]flows.DeniedByPolicy{"node-1": tc.hostile, "node-2": {by(db, 2, 60, "web to db, TCP 80")}},
				gone:   func(p Policy) bool { return p != db },
			}
			inBubble(t, n, func(t *testing.T, c *Collector, _ func() []string) {
				if got, _ := c.Of(db); !strings.HasPrefix(got.Message, tc.want) {
					t.Errorf("got %q, want %q", got.Message, tc.want)
				}
				if len(c.reports) != 1 {
					t.Errorf("%d policies have a report", len(c.reports))
				}
			})
		})
	}
}

// named returns policies with these names, printed with numbers, in a namespace that is printed
// so as well.
func named(count int, namespace, name string) (all []flows.DeniedByPolicy) {
	print := func(format string, i int) string {
		if strings.Contains(format, "%") {
			return fmt.Sprintf(format, i)
		}
		return format
	}
	for i := range count {
		all = append(all, by(Policy{"NetworkPolicy", types.NamespacedName{Namespace: print(namespace, i), Name: print(name, i)}}, 1, 0))
	}
	return all
}

// No agent and no namespace with many policies delays the text of another policy that denies,
// even if all others have a text or wait for one.
func TestNoPolicyIsSilenced(t *testing.T) {
	for name, tc := range map[string]struct {
		node1, node2 []flows.DeniedByPolicy
	}{
		"an agent knows policies that do not exist":        {named(1024, "shop", "gone-%04d"), nil},
		"an agent knows policies of an unlisted kind":      {[]flows.DeniedByPolicy{by(Policy{"Other", types.NamespacedName{Name: "x"}}, 1, 0)}, nil},
		"an agent blames the policies of all namespaces":   {named(1024, "a-%04d", "a"), nil},
		"an agent blames the policies of one namespace":    {named(1024, "shop", "a-%04d"), nil},
		"an agent blames policies with and without audits": {append(named(512, "a-%04d", "a"), named(512, "b-%04d", "b")...), nil},
		"a tenant has many policies on every node":         {named(1000, "evil", "a-%04d"), named(1000, "evil", "a-%04d")},
		"a tenant has other policies on each node":         {named(1000, "evil", "a-%04d"), named(1000, "evil", "b-%04d")},
	} {
		t.Run(name, func(t *testing.T) {
			n := &nodes{
				denied: map[string][]flows.DeniedByPolicy{"node-1": tc.node1, "node-2": tc.node2},
				gone:   func(p Policy) bool { return strings.HasPrefix(p.Name, "gone") },
			}
			inBubble(t, n, func(t *testing.T, c *Collector, changed func() []string) {
				next(3)
				if got := len(changed()); got > 4*maxTexts {
					t.Errorf("%d texts in four rounds", got)
				}
				// z is behind all others by its names.
				p := Policy{"NetworkPolicy", types.NamespacedName{Namespace: "shop", Name: "z"}}
				n.denied["node-2"] = append(n.denied["node-2"], by(p, 7, 0))
				next(1)
				if got, _ := c.Of(p); !strings.HasPrefix(got.Message, "7 packets denied") {
					t.Errorf("after a minute the text is %q", got.Message)
				}
			})
		})
	}
}

// Every policy gets its turn, however many deny all the time.
func TestEveryPolicyGetsATurn(t *testing.T) {
	const policies = 10 * maxTexts
	n := &nodes{denied: map[string][]flows.DeniedByPolicy{"node-1": named(policies, "a-%04d", "a"), "node-2": named(policies, "shop", "b-%04d")}}
	inBubble(t, n, func(t *testing.T, c *Collector, changed func() []string) {
		next(2 * policies / maxTexts)
		found := changed()
		slices.Sort(found)
		if got := len(slices.Compact(found)); got != 2*policies {
			t.Errorf("%d of %d policies have a text", got, 2*policies)
		}
	})
}

// Texts that expire together go 30 a minute, those of the oldest denials first, and so do texts of an
// earlier writer.
func TestTextsThatExpireTogether(t *testing.T) {
	n := &nodes{denied: map[string][]flows.DeniedByPolicy{"node-1": named(2*maxTexts, "a-%04d", "a")}, silent: map[string]bool{"node-2": true}}
	inBubble(t, n, func(t *testing.T, c *Collector, changed func() []string) {
		earlier := func(i int) Policy {
			return Policy{"NetworkPolicy", types.NamespacedName{Namespace: "shop", Name: fmt.Sprintf("earlier-%02d", i)}}
		}
		for i := range 2 * maxExpired {
			c.Await(earlier(i))
		}
		next(1)
		if got := len(changed()); got != 2*maxTexts {
			t.Fatalf("%d texts", got)
		}
		n.denied, n.silent = nil, nil
		next(1)
		if got := len(changed()); got != maxExpired {
			t.Errorf("%d texts of an earlier writer go in a minute", got)
		}
		if _, known := c.Of(earlier(0)); !known {
			t.Error("the first text of an earlier writer stays")
		}
		if _, known := c.Of(earlier(2*maxExpired - 1)); known {
			t.Error("the last text of an earlier writer does not wait")
		}
		next(1)
		if got := len(changed()); got != maxExpired {
			t.Errorf("%d texts of an earlier writer go in a minute", got)
		}
		next(57)
		if got := changed(); len(got) > 0 {
			t.Errorf("%v within an hour", got)
		}
		gone := 0
		for range 2*maxTexts/maxExpired + 1 {
			next(1)
			now := len(changed())
			if now > maxExpired {
				t.Errorf("%d texts go in a minute", now)
			}
			gone += now
		}
		if gone != 2*maxTexts || len(c.reports) != 0 {
			t.Errorf("%d of %d texts go, %d are left", gone, 2*maxTexts, len(c.reports))
		}
	})
}

// Deleted policies lose their text, and are counted while an agent names them.
func TestPoliciesThatAreGone(t *testing.T) {
	n := &nodes{denied: map[string][]flows.DeniedByPolicy{"node-1": {by(db, 1, 0)}}}
	inBubble(t, n, func(t *testing.T, c *Collector, _ func() []string) {
		n.gone = func(Policy) bool { return true }
		next(1)
		wantText(t, c, "", true)
		if got := testutil.ToFloat64(c.unknown); got != 1 {
			t.Errorf("%v policies counted that do not exist", got)
		}
	})
}

// Denials of policies that are not listed yet are unknown. Agents are asked again as soon as the
// policies are listed.
func TestPoliciesThatAreNotListedYet(t *testing.T) {
	n := &nodes{denied: map[string][]flows.DeniedByPolicy{"node-1": {by(db, 1, 0)}}, unlisted: map[string]bool{"NetworkPolicy": true}}
	inBubble(t, n, func(t *testing.T, c *Collector, changed func() []string) {
		wantText(t, c, "", false)
		c.Await(db)
		n.unlisted = nil
		n.listed <- struct{}{}
		synctest.Wait()
		wantText(t, c, "1 packet denied within an hour, the last at 2000-01-01T00:00:01Z.", true)
		wantChanged(t, changed(), "NetworkPolicy shop/db")
	})
}
