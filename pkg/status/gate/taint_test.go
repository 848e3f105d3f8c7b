package gate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

const (
	key       = "example.com/agent-not-ready"
	namespace = "kube-system"
)

var created = metav1.NewTime(time.Unix(1_000_000, 0))

func node(name string, taints ...corev1.Taint) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1", CreationTimestamp: created}, Spec: corev1.NodeSpec{Taints: taints}}
}

func taint(key string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Effect: effect}
}

// agent returns an agent that is ready, changed by change.
func agent(node string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent-" + node, Labels: map[string]string{"app": "agent"}, CreationTimestamp: created},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

// startTaint runs a Taint in the bubble until the test ends.
func startTaint(t *testing.T, client *fake.Clientset) *Taint {
	t.Helper()
	r, err := NewTaint(statustest.NodesOf(client), statustest.PodsOf(client, namespace), key, "app=agent", prometheus.NewPedanticRegistry())
	if err != nil {
		t.Fatal(err)
	}
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	pass(time.Minute)
	return r
}

func taintsOf(t *testing.T, client *fake.Clientset, name string) []corev1.Taint {
	t.Helper()
	n, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n.Spec.Taints
}

func TestWhichNodesLoseTheTaint(t *testing.T) {
	ours := taint(key, corev1.TaintEffectNoSchedule)
	other := taint("example.com/other", corev1.TaintEffectNoSchedule)
	for _, tc := range []struct {
		name         string
		taints, want []corev1.Taint
		agent        *corev1.Pod
	}{
		{"agent ready", []corev1.Taint{ours}, nil, agent("a", nil)},
		{"other taints stay", []corev1.Taint{other, ours, taint("x", corev1.TaintEffectNoExecute)}, []corev1.Taint{other, taint("x", corev1.TaintEffectNoExecute)}, agent("a", nil)},
		{"every effect", []corev1.Taint{ours, taint(key, corev1.TaintEffectNoExecute)}, nil, agent("a", nil)},
		{"no agent", []corev1.Taint{ours}, []corev1.Taint{ours}, agent("b", nil)},
		{"agent not ready", []corev1.Taint{ours}, []corev1.Taint{ours}, agent("a", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })},
		{"agent without conditions", []corev1.Taint{ours}, []corev1.Taint{ours}, agent("a", func(p *corev1.Pod) { p.Status.Conditions = nil })},
		{"another condition", []corev1.Taint{ours}, []corev1.Taint{ours}, agent("a", func(p *corev1.Pod) { p.Status.Conditions[0].Type = corev1.ContainersReady })},
		{"agent that ends", []corev1.Taint{ours}, []corev1.Taint{ours}, agent("a", func(p *corev1.Pod) {
			p.DeletionTimestamp, p.Finalizers = &created, []string{"x/y"}
		})},
		{"agent of an earlier node of that name", []corev1.Taint{ours}, []corev1.Taint{ours}, agent("a", func(p *corev1.Pod) {
			p.CreationTimestamp = metav1.NewTime(created.Add(-time.Second))
		})},
		{"pod of another namespace", []corev1.Taint{ours}, []corev1.Taint{ours}, agent("a", func(p *corev1.Pod) { p.Namespace = "x" })},
		{"a taint that is not ours", []corev1.Taint{other}, []corev1.Taint{other}, agent("a", nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewClientset(node("a", tc.taints...), tc.agent)
				startTaint(t, client)
				if got := taintsOf(t, client, "a"); !slices.Equal(got, tc.want) {
					t.Errorf("the node has the taints %v, want %v", got, tc.want)
				}
			})
		})
	}
}

func TestTaintIsRemovedWhenTheAgentBecomesReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(node("a", taint(key, corev1.TaintEffectNoSchedule)))
		r := startTaint(t, client)
		if got := taintsOf(t, client, "a"); len(got) != 1 {
			t.Fatalf("without an agent the node has the taints %v", got)
		}
		if _, err := client.CoreV1().Pods(namespace).Create(t.Context(), agent("a", nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if got := taintsOf(t, client, "a"); len(got) != 0 {
			t.Errorf("with an agent the node has the taints %v", got)
		}
		if got := testutil.ToFloat64(r.removals.WithLabelValues("success")); got != 1 {
			t.Errorf("%v removals are counted, want 1", got)
		}
	})
}

func TestFailedRemovalsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(node("a", taint(key, corev1.TaintEffectNoSchedule)), agent("a", nil))
		failures := 0
		client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if patch := string(action.(clienttesting.PatchAction).GetPatch()); !strings.Contains(patch, `"resourceVersion"`) {
				t.Errorf("the patch %s does not name a version", patch)
			}
			failures++
			if failures <= 3 {
				return true, nil, errors.New("no connection")
			}
			return false, nil, nil
		})
		r := startTaint(t, client)
		if got := taintsOf(t, client, "a"); len(got) != 0 {
			t.Errorf("the node has the taints %v", got)
		}
		if got := testutil.ToFloat64(r.removals.WithLabelValues("error")); got != 3 {
			t.Errorf("%v errors are counted, want 3", got)
		}
	})
}

// A changed node is read again first, because its other taints may be new.
func TestANodeThatHasChangedIsNotOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(node("a", taint(key, corev1.TaintEffectNoSchedule)), agent("a", nil))
		conflicts := 0
		client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			conflicts++
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "a", errors.New("changed"))
		})
		startTaint(t, client)
		if conflicts != 1 {
			t.Errorf("%d attempts without a change of the node, want 1", conflicts)
		}
		changed := node("a", taint(key, corev1.TaintEffectNoSchedule), taint("x", corev1.TaintEffectNoSchedule))
		if _, err := client.CoreV1().Nodes().Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if conflicts != 2 {
			t.Errorf("%d attempts after a change of the node, want 2", conflicts)
		}
	})
}

func TestTaintKeyIsValid(t *testing.T) {
	if _, err := NewTaint(nil, nil, "a/b/c", "app=agent", prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), `"a/b/c"`) {
		t.Errorf("the error is %v, want it to name the key", err)
	}
}

func TestTaintMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	if _, err := NewTaint(nil, nil, key, "app=agent", reg); err != nil {
		t.Fatal(err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("metrics: %v %v", problems, err)
	}
}
