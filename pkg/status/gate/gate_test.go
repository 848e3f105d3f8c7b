package gate

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
)

// One write makes a pod ready, once it has its addresses. Later versions of it change nothing.
func TestAPodBecomesReadyOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.create(web("95", withoutAddress))
		pass(time.Hour)
		c.want("without an address", "", 0)
		c.update(web("96", nil))
		pass(4 * time.Second)
		c.want("with an address", onAll, 1)
		if got := testutil.ToFloat64(c.written.WithLabelValues(resultSuccess)); got != 1 {
			t.Errorf("%v writes are counted", got)
		}

		ready := c.get()
		ready.ResourceVersion = "200"
		c.update(ready)
		c.Set("node-1", answer("1", "1", "1"), nil) // its agent has started again
		c.Set("node-2", inforce.Answer{}, errTimeout)
		pass(time.Hour)
		c.want("an hour later", onAll, 0)
		if n := c.waiting(); n != 0 {
			t.Errorf("%d pods wait", n)
		}
	})
}

// Whatever a pod's own node does not enforce or say, the pod is not ready, and its condition says so once.
func TestFaultsOfTheOwnNode(t *testing.T) {
	problem := answer("100", "100", "100")
	problem.Problem = "another agent writes the table" // two agents at a hand-over
	behind := answer("100", "100", "100")
	for i := range behind.Kinds {
		behind.Kinds[i].Behind = "not watched"
	}
	other := answer("100", "100", "100")
	other.Node = "node-2"
	for name, tt := range map[string]struct {
		answer inforce.Answer
		err    error
		want   string
	}{
		"no answer":          {err: errTimeout, want: "timeout"},
		"an older agent":     {err: errors.New("HTTP status 404"), want: "HTTP status 404"},
		"old policies":       {answer: answer("89", "100", "100"), want: "NetworkPolicy: version 90 is not received, only version 89"},
		"old namespaces":     {answer: answer("100", "39", "100"), want: "Namespace: version 40 is not received, only version 39"},
		"old pods":           {answer: answer("100", "100", "95"), want: "Pod: version 96 is not received, only version 95"},
		"hand-over":          {answer: problem, want: "another agent writes the table"},
		"not watched":        {answer: behind, want: "not watched"},
		"another node":       {answer: other, want: `the agent says that it runs on node "node-2"`},
		"no kinds":           {answer: inforce.Answer{Kinds: []inforce.Kind{}}, want: "the agent does not enforce Pod"},
		"no version numbers": {answer: answer("x", "x", "x"), want: "Pod: version 96 is not received, only version x"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.Set("node-1", tt.answer, tt.err)
				c.create(web("96", nil))
				pass(4 * time.Second)
				c.want("at first", "", 0)
				pass(10 * time.Second)
				c.want("soon", "False Pending: Waiting for its own node node-1: "+tt.want+".", 1)
				pass(time.Hour)
				c.want("an hour later", "False Pending: Waiting for its own node node-1: "+tt.want+".", 0)
				c.Set("node-1", answer("90", "40", "96"), nil)
				pass(20 * time.Second)
				c.want("when it enforces them", onAll, 1)
			})
		})
	}
}

func TestANodeWithoutAnAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.create(web("96", func(p *corev1.Pod) { p.Spec.NodeName = "node-4" }))
		pass(time.Hour)
		c.want("an hour later", "False Pending: Waiting for its own node node-4: no agent runs there.", 1)
	})
}

// Other nodes have to know the pod, and nothing else. They count for half a minute.
func TestFaultsOfOtherNodes(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.Set("node-2", answer("1", "1", "96"), nil)
		c.create(web("96", nil))
		pass(4 * time.Second)
		c.want("with a node that has old policies", onAll, 1)
	})
	for name, tt := range map[string]struct {
		answer inforce.Answer
		err    error
		want   string
	}{
		"no answer": {err: errTimeout, want: "timeout"},
		"old pods":  {answer: answer("100", "100", "95"), want: "Pod: version 96 is not received, only version 95"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.Set("node-2", tt.answer, tt.err)
				c.create(web("96", nil))
				pass(othersPatience - time.Second)
				c.want("within half a minute", "False Pending: Waiting for node-2: "+tt.want+".", 1)
				pass(5 * time.Second)
				c.want("after half a minute", "True EnforcedOnOwnNode: Policies are in force on its node. After 30s, it does not wait any longer for node-2: "+tt.want+".", 1)
			})
		})
	}
}

// At most three nodes are named, the own one first.
func TestNamedNodes(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		for i := 4; i < 9; i++ {
			if err := c.client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}); err != nil {
				t.Fatal(err)
			}
		}
		c.create(web("96", func(p *corev1.Pod) { p.Spec.NodeName = "node-6" }))
		pass(time.Minute)
		c.want("after a minute", "False Pending: Waiting for its own node node-6: no agent runs there; node-4: no agent runs there; node-5: no agent runs there; and 2 more.", 1)
	})
}

// An agent that starts again with older versions while a pod waits is waited for.
func TestAnAgentStartsAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.Set("node-2", answer("100", "100", "95"), nil)
		c.create(web("96", nil))
		pass(4 * time.Second)
		c.Set("node-1", answer("100", "7", "100"), nil)
		c.Set("node-2", answer("100", "100", "100"), nil)
		pass(time.Minute)
		c.want("meanwhile", "False Pending: Waiting for its own node node-1: Namespace: version 40 is not received, only version 7.", 1)
		c.Set("node-1", answer("100", "100", "100"), nil)
		pass(20 * time.Second)
		c.want("when it has caught up", onAll, 1)
	})
}

// After a restore, versions are used again: what was needed before may never be reached, and what was
// answered before does not count.
func TestARestoredServer(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		for _, node := range []string{"node-1", "node-2", "node-3"} {
			c.Set(node, answer("60", "60", "60"), nil)
		}
		c.create(web("96", nil))
		pass(time.Minute)
		c.want("before", "False Pending: Waiting for its own node node-1: Pod: version 96 is not received, only version 60; node-2: Pod: version 96 is not received, only version 60; node-3: Pod: version 96 is not received, only version 60.", 1)
		restored := c.get()
		restored.ResourceVersion = "55"
		c.setKnown(map[string]string{"NetworkPolicy": "50"}, nil)
		c.update(restored)
		pass(15 * time.Second)
		c.want("restored", onAll, 1)
	})
	t.Run("policies only", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *cluster) {
			c.Set("node-1", answer("60", "60", "100"), nil)
			c.create(web("96", nil))
			pass(time.Minute)
			c.want("before", "False Pending: Waiting for its own node node-1: NetworkPolicy: version 90 is not received, only version 60.", 1)
			c.setKnown(map[string]string{"NetworkPolicy": "59"}, nil)
			pass(15 * time.Second)
			c.want("restored", onAll, 1)
		})
	})
	t.Run("lists are taken as they are", func(t *testing.T) {
		inBubble(t, func(t *testing.T, c *cluster) {
			c.stop()
			p := web("96", nil)
			s := store{c.Gate}
			if err := s.Replace([]any{p}, "96"); err != nil {
				t.Fatal(err)
			}
			c.pods[nameOf(p)].stored = "97"
			if err := s.Update(p); err != nil || c.waiting() != 0 {
				t.Errorf("%d pods wait for a condition that is written, %v", c.waiting(), err)
			}
			if err := s.Replace([]any{web("50", nil)}, "50"); err != nil || c.waiting() != 1 {
				t.Errorf("%d pods wait for a condition that the server has lost, %v", c.waiting(), err)
			}
		})
	})
}

// A write is for one pod, and not for the next one with its name.
func TestAPodIsCreatedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.setBefore(func() {
			c.remove(web("96", nil))
			c.Set("node-1", answer("100", "100", "100"), nil)
			c.create(web("101", func(p *corev1.Pod) { p.UID = "web-2" }))
		})
		c.create(web("96", nil))
		pass(10 * time.Second)
		// The new pod is not known to agents.
		p := c.get()
		if now := conditionOf(p, PoliciesEnforced); now == nil || now.Status != corev1.ConditionFalse || p.UID != "web-2" {
			t.Errorf("the condition of the new pod is %v", now)
		}
		if got := testutil.ToFloat64(c.written.WithLabelValues(resultGone)); got != 1 {
			t.Errorf("%v writes were refused, want that to the earlier pod", got)
		}
		for _, node := range []string{"node-1", "node-2", "node-3"} {
			c.Set(node, answer("100", "100", "101"), nil)
		}
		pass(4 * time.Second)
		c.want("when it is known", onAll, 2)
	})
}

// No policy is about pods of the host's network, so no agent has to be there.
func TestHostNetwork(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.create(web("96", func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.NodeName = true, "node-4" }))
		pass(2 * time.Second)
		c.want("soon", "True HostNetwork: The pod has the network of its node. Policies for pods do not apply to it.", 1)
	})
}

func TestPodsThatDoNotAsk(t *testing.T) {
	now := metav1.Now()
	for name, change := range map[string]func(*corev1.Pod){
		"no gate":      func(p *corev1.Pod) { p.Spec.ReadinessGates = p.Spec.ReadinessGates[:1] },
		"no gates":     func(p *corev1.Pod) { p.Spec.ReadinessGates = nil },
		"failed":       func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"succeeded":    func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"being ended":  func(p *corev1.Pod) { p.DeletionTimestamp, p.Finalizers = &now, []string{"example.com/x"} },
		"no addresses": withoutAddress,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, c *cluster) {
				c.create(web("96", change))
				pass(time.Minute)
				c.want("after a minute", "", 0)
			})
		})
	}
}

// A writer that has lost the Lease writes nothing, and another one continues.
func TestLostLease(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.Set("node-1", answer("100", "100", "95"), nil)
		c.create(web("96", nil))
		pass(10 * time.Second)
		c.want("before", "False Pending: Waiting for its own node node-1: Pod: version 96 is not received, only version 95.", 1)
		c.stop()
		c.Set("node-1", answer("100", "100", "100"), nil)
		pass(time.Hour)
		c.want("without a leader", "False Pending: Waiting for its own node node-1: Pod: version 96 is not received, only version 95.", 0)
		if n := c.waiting(); n != 0 {
			t.Errorf("%d pods wait for a writer that does not lead", n)
		}
		c.Set("node-2", answer("100", "100", "95"), nil)
		c.lead()
		pass(10 * time.Second)
		c.want("with the next one", "False Pending: Waiting for its own node node-1: Pod: version 96 is not received, only version 95.", 0)
		c.Set("node-2", answer("100", "100", "100"), nil)
		pass(4 * time.Second)
		c.want("when all know it", onAll, 1)
	})
}

// With other addresses, agents have to know the pod again.
func TestOtherAddresses(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.Set("node-1", answer("100", "100", "95"), nil)
		c.create(web("96", nil))
		pass(4 * time.Second)
		c.update(web("98", func(p *corev1.Pod) { p.Status.PodIP, p.Status.PodIPs = "10.0.0.2", []corev1.PodIP{{IP: "10.0.0.2"}} }))
		c.Set("node-1", answer("100", "100", "97"), nil)
		pass(time.Minute)
		c.want("known with the old ones", "False Pending: Waiting for its own node node-1: Pod: version 98 is not received, only version 97.", 1)
	})
}

// Nothing is in force for a pod before the writer knows the policies.
func TestUnknownPolicies(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.setKnown(nil, errors.New("not listed: NetworkPolicy"))
		c.create(web("96", nil))
		pass(time.Minute)
		c.want("after a minute", "False Pending: The status writer does not know the policies: not listed: NetworkPolicy.", 1)
		c.setKnown(map[string]string{"NetworkPolicy": "101"}, nil)
		pass(4 * time.Second)
		c.want("with policies that no agent has", "False Pending: The status writer does not know the policies: not listed: NetworkPolicy.", 0)
		c.Set("node-1", answer("101", "100", "100"), nil)
		pass(15 * time.Second)
		c.want("with policies that its agent has", onAll, 1)
	})
}

func TestFailedWritesAreRetried(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.setRefused(errors.New("no connection"))
		c.create(web("96", nil))
		pass(time.Minute)
		c.want("meanwhile", "", 0)
		if got := testutil.ToFloat64(c.written.WithLabelValues(resultError)); got < 5 || got > 7 {
			t.Errorf("%v errors in a minute", got)
		}
		c.setRefused(nil)
		pass(2 * retryInterval)
		c.want("later", onAll, 1)
		c.update(web("120", nil))
		for _, node := range []string{"node-1", "node-2", "node-3"} {
			c.Set(node, answer("100", "100", "120"), nil)
		}
		pass(4 * time.Second)
		c.want("after its removal", onAll, 1)
	})
}

// However many pods start or wait, writes are bounded, and those that make pods ready come first.
func TestWritesAreBounded(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.Set("node-2", inforce.Answer{}, errTimeout)
		for i := range 600 {
			c.create(web("96", func(p *corev1.Pod) { p.Name, p.Spec.NodeName = fmt.Sprint("web-", i), fmt.Sprint("node-", 1+i%2) }))
			if i%50 == 0 {
				synctest.Wait() // a watch has a bounded buffer
			}
		}
		pass(othersPatience - time.Second)
		count := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			n := len(c.writes)
			c.writes = nil
			return n
		}
		if n := count(); n == 0 || n > reasonBurst+reasonRate*30 {
			t.Errorf("%d writes of conditions that are not true in half a minute", n)
		}
		pass(2 * time.Second)
		if n := count(); n > writeBurst+3*writeRate+3*reasonRate {
			t.Errorf("%d writes at once", n)
		}
		pass(20 * time.Second)
		if ready := c.ready(PoliciesEnforced); ready != 300 {
			t.Errorf("%d pods are ready, want those 300 whose node enforces policies", ready)
		}
		pass(10 * time.Minute)
		count()
		pass(10 * time.Minute)
		if n := count(); n != 0 {
			t.Errorf("%d writes while nothing changes", n)
		}
	})
}

// Rounds are those of Enforced, more often only while pods wait.
func TestHowOftenAgentsAreAsked(t *testing.T) {
	inBubble(t, func(t *testing.T, c *cluster) {
		c.TakeAsked()
		pass(time.Hour)
		if got := c.TakeAsked(); got > 3*61 {
			t.Errorf("%d questions in a calm hour", got)
		}
		c.create(web("101", nil))
		pass(time.Hour)
		if got := c.TakeAsked(); got < 3*300 || got > 3*500 {
			t.Errorf("%d questions in an hour in which a pod waits", got)
		}
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
		problems, err := testutil.GatherAndLint(c.reg)
		if err != nil || len(problems) > 0 {
			t.Errorf("%v, %v", problems, err)
		}
	})
}

// TestAPodIsReplacedDuringAnOutage: a list shows the next pod with a name, and no event the end of the
// earlier one.
func TestAPodIsReplacedDuringAnOutage(t *testing.T) {
	g := &Gate{cfg: Config{Conditions: []corev1.PodConditionType{PoliciesEnforced}}, pods: map[types.NamespacedName]*pod{}, poked: make(chan struct{}, 1)}
	earlier, next := web("96", nil), web("101", func(p *corev1.Pod) { p.UID = "web-2" })
	if err := (store{g}).Add(earlier); err != nil {
		t.Fatal(err)
	}
	g.pods[nameOf(earlier)].needs = []enforced.Need{{Kind: "Pod", Version: "96"}}
	if err := (store{g}).Replace([]any{next}, "101"); err != nil {
		t.Fatal(err)
	}
	if now := g.pods[nameOf(next)]; now.version != "101" || len(now.needs) > 0 {
		t.Errorf("the next pod waits for version %s and %v, want its own version", now.version, now.needs)
	}
}

// Rights that are missing are those of one file.
func TestFailureNamesTheFileWithTheRights(t *testing.T) {
	for err, want := range map[error]bool{
		apierrors.NewForbidden(corev1.Resource("pods/status"), "web", nil): true,
		apierrors.NewInternalError(errors.New("etcd is not there")):        false,
	} {
		if got := failure(err); strings.Contains(got, "install-readiness.yaml") != want {
			t.Errorf("%v: %s", err, got)
		}
	}
}
