package enforced

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
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

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

// cluster has nodes with an agent each.
type cluster struct {
	*Collector
	*statustest.Agents
	client *fake.Clientset

	mu      sync.Mutex
	delay   time.Duration // of all answers
	changed []string
}

func (c *cluster) askSlowly(ctx context.Context, pod *corev1.Pod) (*inforce.Answer, error) {
	c.mu.Lock()
	delay := c.delay
	c.mu.Unlock()
	time.Sleep(delay)
	return c.Ask(ctx, pod)
}

// answer is that of an agent which enforces the policies up to a version.
func answer(version string) inforce.Answer {
	return inforce.Answer{Kinds: []inforce.Kind{{Kind: "NetworkPolicy", Version: version, Seen: version}, {Kind: "Namespace", Version: "50", Seen: "50"}}}
}

// inBubble runs a Collector of three nodes.
func inBubble(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		all, objects := statustest.NewAgents(3, answer("100"))
		c := &cluster{Agents: all, client: fake.NewClientset(objects...)}
		var err error
		c.Collector, err = New(Config{Pods: statustest.PodsOf(c.client, statustest.AgentsNamespace), Nodes: statustest.NodesOf(c.client), Agents: statustest.AgentsSelector, Ask: c.askSlowly, Registerer: prometheus.NewPedanticRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.Run(ctx, func(p Policy) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.changed = append(c.changed, p.Name)
			})
		}()
		defer func() {
			cancel()
			<-ended
		}()
		pass(10 * time.Second)
		test(t, c)
	})
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var db = Policy{"NetworkPolicy", types.NamespacedName{Namespace: "shop", Name: "db"}}

func generation(n int64) Revision { return Revision{UID: "db", Generation: n} }

func need(version string) Need { return Need{"NetworkPolicy", version} }

// want expects a Text, "" if it is not to be shown, and how often it has changed since the last call.
func (c *cluster) want(t *testing.T, when string, r Revision, text string, changes int) {
	t.Helper()
	got := ""
	if report, known := c.Of(db, r); known {
		got = fmt.Sprintf("%s %s: %s", report.Status, report.Reason, report.Message)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if diff := cmp.Diff(text, got); diff != "" || len(c.changed) != changes {
		t.Errorf("%s, it has changed %d times, want %d; text (-want +got):\n%s", when, len(c.changed), changes, diff)
	}
	c.changed = nil
}

const (
	everywhere = "True EnforcedOnAllNodes: In force on 3 of 3 nodes."
	within     = "True EnforcedOnAllNodes: In force on 3 of 3 nodes, within 1.0 s of the change."
)

// A generation is reported once, as soon as it is in force on all nodes, and again when that has not
// been so for a minute.
func TestOneTextForEachGeneration(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.Note(db, generation(1), true, need("90"))
		c.want(t, "at once", generation(1), "", 0)
		pass(2 * askDelay)
		c.want(t, "soon", generation(1), within, 1)

		c.Note(db, generation(1), true, need("101")) // its status was written
		pass(time.Hour)
		c.want(t, "an hour later", generation(1), within, 0)

		c.Note(db, generation(2), true, need("105"))
		pass(30 * time.Second)
		c.want(t, "another generation", generation(2), "", 0)
		c.Set("node-1", answer("110"), nil)
		c.Set("node-2", answer("110"), nil)
		pass(29 * time.Second)
		c.want(t, "within a minute", generation(2), "", 0)
		pass(5 * time.Second)
		c.want(t, "after a minute", generation(2), "False Pending: In force on 2 of 3 nodes. Not on node-3: NetworkPolicy: version 105 is not received, only version 100.", 1)
		if n := testutil.ToFloat64(c.metrics.nodes.WithLabelValues(nodeCurrent)); n != 3 {
			t.Errorf("%v nodes answer, want 3", n)
		}
		if c.pending(nodeLate) != 1 {
			t.Errorf("%v policies are pending", c.pending(nodeLate))
		}
		pass(time.Hour)
		c.want(t, "much later", generation(2), "False Pending: In force on 2 of 3 nodes. Not on node-3: NetworkPolicy: version 105 is not received, only version 100.", 0)
		c.Set("node-3", answer("105"), nil)
		pass(2 * lateInterval)
		c.want(t, "when it is in force", generation(2), strings.Replace(within, "1.0 s", "1h1m10s", 1), 1)
		if c.pending(nodeLate) != 0 {
			t.Errorf("%v policies are pending", c.pending(nodeLate))
		}
	})
}

// Agents say how long what is in force has been so: the last of them counts, and neither its clock nor
// when it was asked does.
func TestTimeUntilAPolicyIsInForce(t *testing.T) {
	for name, tt := range map[string]struct {
		seconds float64 // of node-2, asked a second after the change
		fresh   bool
		want    string
	}{
		"soon":                             {0.6, true, strings.Replace(within, "1.0 s", "0.4 s", 1)},
		"just now":                         {0, true, within},
		"before the writer knew":           {1.2, true, strings.Replace(within, "1.0 s", "0.1 s", 1)},
		"when the writer started is known": {0.6, false, everywhere},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				for node, seconds := range map[string]float64{"node-1": 7, "node-2": tt.seconds, "node-3": 0.95} {
					a := answer("100")
					a.Kinds[0].Seconds, a.Kinds[1].Seconds = seconds, 0
					c.Set(node, a, nil)
				}
				c.Note(db, generation(1), tt.fresh, need("90"))
				pass(2 * askDelay)
				c.want(t, "soon", generation(1), tt.want, 1)
			})
		})
	}
}

// Whatever a node does not know or say, a new generation is not in force, and one that was is reported
// after a minute, or not at all if only the watch has ended.
func TestFaultsOfANode(t *testing.T) {
	behind := answer("200")
	behind.Kinds[0].Behind = "not watched: NetworkPolicy"
	restored := answer("7")
	problem := answer("200")
	problem.Problem = "another process changed the table"
	other := answer("200")
	other.Node = "node-1"
	older := inforce.Answer{Kinds: []inforce.Kind{{Kind: "Namespace", Version: "50"}}}
	for name, tt := range map[string]struct {
		answer   inforce.Answer
		err      error
		was, new string // reported of a generation that was in force, and of a new one
	}{
		"no answer":      {err: errors.New("timeout"), was: "Unknown AgentsDoNotAnswer: In force on 2 of 3 nodes. Not known of node-2: timeout.", new: "Unknown AgentsDoNotAnswer: In force on 2 of 3 nodes. Not known of node-2: timeout."},
		"an older agent": {err: errors.New("404 Not Found"), was: "Unknown AgentsDoNotAnswer: In force on 2 of 3 nodes. Not known of node-2: 404 Not Found.", new: "Unknown AgentsDoNotAnswer: In force on 2 of 3 nodes. Not known of node-2: 404 Not Found."},
		"another node":   {answer: other, was: `Unknown AgentsDoNotAnswer: In force on 2 of 3 nodes. Not known of node-2: the agent says that it runs on node "node-1".`, new: `Unknown AgentsDoNotAnswer: In force on 2 of 3 nodes. Not known of node-2: the agent says that it runs on node "node-1".`},
		"no watch":       {answer: behind, was: within, new: "False Pending: In force on 2 of 3 nodes. Not on node-2: not watched: NetworkPolicy."},
		"a problem":      {answer: problem, was: "False Pending: In force on 2 of 3 nodes. Not on node-2: another process changed the table.", new: "False Pending: In force on 2 of 3 nodes. Not on node-2: another process changed the table."},
		"an old version": {answer: restored, was: "False Pending: In force on 2 of 3 nodes. Not on node-2: NetworkPolicy: version 90 is not received, only version 7.", new: "False Pending: In force on 2 of 3 nodes. Not on node-2: NetworkPolicy: version 91 is not received, only version 7."},
		"not the kind":   {answer: older, was: "False Pending: In force on 2 of 3 nodes. Not on node-2: the agent does not enforce NetworkPolicy.", new: "False Pending: In force on 2 of 3 nodes. Not on node-2: the agent does not enforce NetworkPolicy."},
		"not a number":   {answer: answer("x"), was: "False Pending: In force on 2 of 3 nodes. Not on node-2: NetworkPolicy: version 90 is not received, only version x.", new: "False Pending: In force on 2 of 3 nodes. Not on node-2: NetworkPolicy: version 91 is not received, only version x."},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.Note(db, generation(1), true, need("90"))
				pass(2 * askDelay)
				c.want(t, "at first", generation(1), within, 1)
				c.Set("node-2", tt.answer, tt.err)
				pass(calmInterval)
				c.want(t, "within a minute", generation(1), within, 0)
				pass(2 * calmInterval)
				changes := 1
				if tt.was == within {
					changes = 0
				}
				c.want(t, "after a minute", generation(1), tt.was, changes)
				c.Note(db, generation(2), true, need("91"))
				pass(patience / 2)
				c.want(t, "the next generation", generation(2), "", 0)
				pass(patience)
				c.want(t, "the next generation after a minute", generation(2), tt.new, 1)
			})
		})
	}
}

// Nodes count whether or not an agent runs there, and a node that is gone does not.
func TestNodesComeAndGo(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.Note(db, generation(1), true, need("90"))
		pass(2 * askDelay)
		c.want(t, "at first", generation(1), within, 1)
		nodes, pods := c.client.CoreV1().Nodes(), c.client.CoreV1().Pods("kube-system")
		if err := pods.Delete(t.Context(), "agent-node-2", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := 4; i < 8; i++ {
			if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		pass(3 * calmInterval)
		c.want(t, "with nodes without an agent", generation(1), "False Pending: In force on 2 of 7 nodes. Not on node-2: no agent runs there; node-4: no agent runs there; node-5: no agent runs there; and 2 more.", 1)
		for _, name := range []string{"node-2", "node-4", "node-5", "node-6", "node-7"} {
			if err := nodes.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		pass(2 * lateInterval)
		c.want(t, "without them", generation(1), "True EnforcedOnAllNodes: In force on 2 of 2 nodes.", 1)
	})
}

// A policy that is no longer audited is in force once the agents know the namespace that said so.
func TestAllNeedsCount(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		audited := generation(1)
		audited.Audited = true
		c.Note(db, audited, true, need("90"), Need{"Namespace", "40"})
		pass(2 * askDelay)
		c.want(t, "audited", generation(1), "", 1)
		c.Note(db, generation(1), true, need("90"), Need{"Namespace", "60"})
		pass(patience / 2)
		c.want(t, "not audited", generation(1), "", 0)
		a := answer("100")
		a.Kinds[1].Version = "60"
		for _, node := range []string{"node-1", "node-2", "node-3"} {
			c.Set(node, a, nil)
		}
		pass(2 * askDelay)
		c.want(t, "when its namespace is known", generation(1), strings.Replace(within, "1.0 s", "31s", 1), 1)
	})
}

// Agents are asked about once a minute, more often only while changes are pending, and never more than
// a fifth of the time.
func TestHowOftenAgentsAreAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.TakeAsked()
		pass(time.Hour)
		if got := c.TakeAsked(); got < 3*55 || got > 3*61 {
			t.Errorf("%d questions in a calm hour", got)
		}
		for i := range 600 {
			p := db
			p.Name = fmt.Sprint("db-", i%100)
			c.Note(p, generation(int64(i)), true, need("90"))
			pass(100 * time.Millisecond)
		}
		if got := c.TakeAsked(); got < 3*30 || got > 3*62 {
			t.Errorf("%d questions in a minute with 600 changes", got)
		}
	})
}

// After a round, agents rest for four times as long while policies change, and no longer than a minute.
func TestRestAfterARound(t *testing.T) {
	for _, tt := range []struct {
		round time.Duration
		most  int // rounds in an hour
	}{
		{time.Second, 3600 / 5},
		{5 * time.Second, 3600 / 25},
		{100 * time.Second, 3600/160 + 1},
	} {
		t.Run(tt.round.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.mu.Lock()
				c.delay = tt.round
				c.mu.Unlock()
				pass(5 * time.Minute)
				c.TakeAsked()
				for i := range 3600 {
					c.Note(db, generation(int64(i)), true, need("90"))
					pass(time.Second)
				}
				if got := c.TakeAsked() / 3; got > tt.most || got < tt.most*9/10 {
					t.Errorf("%d rounds in an hour, want %d", got, tt.most)
				}
			})
		})
	}
}

// shown is what a writer shows: it asks for each change whether it may.
type shown struct {
	*cluster
	texts    map[string]metav1.ConditionStatus
	replaced int // how often one text replaced another of the same generation
}

// show shows what has changed since the last call, and returns the names in that order.
func (s *shown) show() (names []string) {
	s.mu.Lock()
	changed := s.changed
	s.changed = nil
	s.mu.Unlock()
	for _, name := range changed {
		p := db
		p.Name = name
		text, known := s.Of(p, generation(1))
		old, again := s.texts[name]
		if !known || old == text.Status || !s.MayShow(p, generation(1), again) {
			continue
		}
		s.texts[name] = text.Status
		names = append(names, name)
		if again {
			s.replaced++
		}
	}
	return names
}

func (s *shown) count(status metav1.ConditionStatus) (n int) {
	for _, shown := range s.texts {
		if shown == status {
			n++
		}
	}
	return n
}

// A node that comes and goes changes 300 texts at once and 60 a minute. The others follow, those that
// are no longer true first, and what has become true again meanwhile does not change.
func TestANodeThatComesAndGoes(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		const policies = 500
		for i := range policies {
			p := db
			p.Name = fmt.Sprintf("db-%03d", i)
			version := "90"
			if i >= 400 {
				version = "95"
			}
			c.Note(p, generation(1), true, need(version))
		}
		s := &shown{cluster: c, texts: map[string]metav1.ConditionStatus{}}
		want := func(when string, inForce, replaced int) {
			t.Helper()
			if got := s.count(metav1.ConditionTrue); got != inForce || s.replaced != replaced {
				t.Errorf("%s, %d texts say that a policy is in force, %d were replaced; want %d, %d", when, got, s.replaced, inForce, replaced)
			}
		}
		// During a minute, texts are shown as they change.
		minute := func() {
			for range 60 {
				pass(time.Second)
				s.show()
			}
		}
		minute()
		want("at first", policies, 0)
		c.Set("node-1", answer("100"), errors.New("hangs"))
		minute() // one round after a minute, and one a minute later
		minute()
		minute()
		gone := s.replaced
		if gone < 300 || gone > 300+2*60 {
			t.Fatalf("%d texts were replaced within two minutes after the first", gone)
		}
		want("when the node does not answer", policies-gone, gone)
		// It enforces all but a hundred policies: those that are true wait for those that are not.
		c.Set("node-1", answer("92"), nil)
		for len(s.show()) == 0 {
			pass(time.Second)
		}
		for range 15 {
			minute()
		}
		want("when all is shown", 400, s.replaced)
		for name, status := range s.texts {
			if (name < "db-400") != (status == metav1.ConditionTrue) {
				t.Errorf("%s says %s", name, status)
			}
		}
		if s.replaced > 300+19*60 {
			t.Errorf("%d texts were replaced within 19 minutes", s.replaced)
		}
		before := s.replaced
		pass(time.Hour)
		s.show()
		want("an hour later", 400, before)
	})
}

// What is no longer true is shown before what is true again, and a policy that is in force by older
// answers only is not shown as in force.
func TestWhatIsNotTrueIsShownFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Pods: statustest.Pods{}, Nodes: statustest.Nodes{}, Agents: "x", Ask: (&statustest.Agents{}).Ask, Registerer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		named := func(name string) Policy { return Policy{db.Kind, types.NamespacedName{Namespace: "shop", Name: name}} }
		add := func(name string, status metav1.ConditionStatus, late time.Time) {
			c.policies[named(name)] = &followed{Revision: generation(1), needs: []Need{need("90")}, all: status == metav1.ConditionTrue, late: late, report: Text{Status: status}}
		}
		if !c.again.AllowN(time.Now(), againBurst) {
			t.Fatal("the budget is too small")
		}
		add("a", metav1.ConditionTrue, time.Time{})
		add("b", metav1.ConditionTrue, time.Time{})
		add("c", metav1.ConditionFalse, time.Now())
		add("d", metav1.ConditionTrue, time.Now())
		for _, name := range []string{"a", "b", "c", "d"} {
			if c.MayShow(named(name), generation(1), true) {
				t.Errorf("%s is shown without a budget", name)
			}
			time.Sleep(time.Millisecond)
		}
		add("first", metav1.ConditionFalse, time.Now())
		if !c.MayShow(named("first"), generation(1), false) {
			t.Error("the first text of a generation needs a budget")
		}
		var order []string
		for range 5 {
			time.Sleep(time.Second)
			granted, _ := c.showWaiting()
			for _, p := range granted {
				order = append(order, p.Name)
			}
		}
		if diff := cmp.Diff([]string{"c", "a", "b"}, order); diff != "" {
			t.Errorf("shown (-want +got):\n%s", diff)
		}
		if !c.MayShow(named("a"), generation(1), true) || c.MayShow(named("d"), generation(1), true) {
			t.Error("what has had its turn is not shown, or what is in doubt is")
		}
		c.policies[named("d")].late = time.Time{}
		if granted, _ := c.showWaiting(); len(granted) != 1 {
			t.Error("what is no longer in doubt is not shown")
		}
	})
}

// An answer that may be older than a change does not count.
func TestAnswersAreNewerThanTheChange(t *testing.T) {
	r := &round{started: time.Now(), nodes: []node{{name: "n"}}, lowest: [2]map[string]string{{"NetworkPolicy": "100"}, {"NetworkPolicy": "100"}}}
	c, err := New(Config{Pods: statustest.Pods{}, Nodes: statustest.Nodes{}, Agents: "x", Ask: (&statustest.Agents{}).Ask, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	c.policies[db] = &followed{Revision: generation(1), needs: []Need{need("90")}, since: r.started.Add(1), late: r.started.Add(1)}
	if changed, _ := c.evaluate(r); len(changed) > 0 {
		t.Error("an answer from before the change counts")
	}
	r.started = r.started.Add(1)
	if changed, _ := c.evaluate(r); len(changed) != 1 {
		t.Error("an answer from after the change does not count")
	}
}

func TestForgottenPolicies(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.Note(db, generation(1), true, need("90"))
		pass(2 * askDelay)
		c.Forget(db)
		c.want(t, "forgotten", generation(1), "", 1)
		c.Note(db, generation(1), true, need("90"))
		c.ForgetKind("Other")
		pass(2 * askDelay)
		c.want(t, "after another kind is forgotten", generation(1), within, 1)
		c.ForgetKind(db.Kind)
		c.want(t, "after the kind is forgotten", generation(1), "", 0)
	})
}

func TestConfigNamesItsFaults(t *testing.T) {
	_, err := New(Config{})
	if err == nil || strings.Count(err.Error(), "\n") != 4 {
		t.Errorf("got %v", err)
	}
}

func TestMetricsLint(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		reg := c.cfg.Registerer.(*prometheus.Registry)
		if n, err := testutil.GatherAndCount(reg, "netpol_enforced_pending_policies"); n != 5 || err != nil {
			t.Errorf("%d reasons of pending policies, want 5: %v", n, err)
		}
		problems, err := testutil.GatherAndLint(reg)
		if err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	})
}

// A policy that selects pods which a node does not know by address is not said to be enforced whole,
// from the first answer that says so until a minute after the last. The node with most such pods counts.
func TestPodsThatAreNotKnownByAddress(t *testing.T) {
	const one = "False PodsNotKnownByAddress: In force on 3 of 3 nodes, but 1 pod that it may select has an address that may be another's, such as shop/web: packets pass only if they are allowed for each."
	two := strings.NewReplacer("1 pod that it may select has an address", "2 pods that it may select have addresses", "shop/web", "shop/api").Replace(one)
	unsure := func(u ...inforce.Uncertain) inforce.Answer {
		a := answer("100")
		a.Uncertain = u
		return a
	}
	ofDB := inforce.Uncertain{Kind: "NetworkPolicy", Namespace: "shop", Name: "db", Pods: 1, Example: "shop/web"}
	other := inforce.Uncertain{Kind: "NetworkPolicy", Namespace: "shop", Name: "other", Pods: 3, Example: "shop/x"}
	for name, tt := range map[string]struct {
		answer inforce.Answer
		want   string
	}{
		"this policy":    {unsure(ofDB, other), one},
		"another policy": {unsure(other), within},
		"every policy":   {unsure(inforce.Uncertain{Pods: 2, Example: "shop/api"}), two},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.Set("node-2", tt.answer, nil)
				c.Note(db, generation(1), true, need("90"))
				pass(2 * askDelay)
				c.want(t, "soon", generation(1), tt.want, 1)
			})
		})
	}
	for name, also := range map[string]struct {
		answer inforce.Answer
		err    error
	}{
		"all nodes answer":      {answer("100"), nil},
		"another one is late":   {answer("80"), nil},
		"another one is silent": {inforce.Answer{}, errors.New("hangs")},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.Note(db, generation(1), true, need("90"))
				pass(2 * askDelay)
				c.want(t, "at first", generation(1), within, 1)
				c.Set("node-2", unsure(ofDB), nil)
				c.Set("node-1", also.answer, also.err)
				pass(calmInterval)
				c.want(t, "with the first answer", generation(1), one, 1)
				c.Set("node-1", answer("100"), nil)
				c.Set("node-3", unsure(inforce.Uncertain{Kind: "NetworkPolicy", Namespace: "shop", Name: "db", Pods: 2, Example: "shop/api"}), nil)
				c.askNow("a")
				c.want(t, "two on another node", generation(1), two, 2)
				c.Set("node-2", answer("100"), nil)
				c.Set("node-3", answer("100"), nil)
				c.askNow("b")
				c.want(t, "when they are known", generation(1), two, 1)
				pass(2 * calmInterval)
				c.want(t, "a minute later", generation(1), everywhere, 1)
			})
		})
	}
}

// askNow has agents asked soon, because of a policy whose report changes then.
func (c *cluster) askNow(name string) {
	c.Note(Policy{"NetworkPolicy", types.NamespacedName{Namespace: "other", Name: name}}, generation(1), true, need("90"))
	pass(2 * askDelay)
}

// Pods that are uncertain now and then cost no more writes than nodes that come and go, and no text that
// is no longer true waits for one that is true again.
func TestPodsThatAreUncertainNowAndThen(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		const policies = 2 * againBurst
		for i := range policies {
			c.Note(Policy{db.Kind, types.NamespacedName{Namespace: "shop", Name: fmt.Sprintf("db-%03d", i)}}, generation(1), true, need("90"))
		}
		s := &shown{cluster: c, texts: map[string]metav1.ConditionStatus{}}
		minutes := func(n int, each func()) {
			for range n * 60 {
				pass(time.Second)
				s.show()
				each()
			}
		}
		minutes(1, func() {})
		unsure := answer("100")
		unsure.Uncertain = []inforce.Uncertain{{Pods: 2, Example: "shop/api"}}
		c.Set("node-2", unsure, nil)
		minutes(2, func() {
			if n := s.count(metav1.ConditionTrue); n != policies && s.replaced+n != policies {
				t.Fatalf("%d texts were replaced, and %d are true", s.replaced, n)
			}
		})
		if s.replaced < againBurst || s.replaced > againBurst+2*60 {
			t.Errorf("%d texts were replaced within two minutes", s.replaced)
		}
		for i := range 60 {
			c.Set("node-2", []inforce.Answer{answer("100"), unsure}[i%2], nil)
			minutes(1, func() {})
		}
		if s.replaced > againBurst+63*60 {
			t.Errorf("%d texts were replaced within 62 minutes", s.replaced)
		}
	})
}
