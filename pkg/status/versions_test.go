package status

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
	"sigs.k8s.io/kube-network-policies/pkg/status/gate"
	"sigs.k8s.io/kube-network-policies/pkg/status/statustest"
)

func readinessGate(t *testing.T, client kubernetes.Interface, rounds *enforced.Collector) *gate.Gate {
	t.Helper()
	g, err := gate.New(gate.Config{Pods: func(namespace string) gate.Pods { return statustest.PodsOf(client, namespace) }, Rounds: rounds, Conditions: []corev1.PodConditionType{gate.NetworkReady}, FieldManager: FieldManager, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// gatedPod is a pod with a readiness gate and an address, on the node of enforcedCollector.
func gatedPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec:       corev1.PodSpec{NodeName: "node-1", ReadinessGates: []corev1.PodReadinessGate{{ConditionType: gate.NetworkReady}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
	}
}

// A pod waits for the newest policy, and for its deletion. Kinds that the server does not have do not
// count.
func TestPodsWaitForPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := statustest.NewServer(statustest.Behavior{Status: statustest.Stored})
		s.Create(netpol(t, "old", clean))
		s.Create(netpol(t, "new", clean))
		version := func(name string) int {
			n, err := strconv.Atoi(s.Policy("x", name).GetResourceVersion())
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		var answer atomic.Pointer[inforce.Answer]
		enforces := func(upTo int) {
			a := inForceUpTo(fmt.Sprint(upTo))
			a.Kinds = append(a.Kinds, inforce.Kind{Kind: "Pod", Version: "10", Seen: "10"})
			answer.Store(a)
		}
		enforces(1_000_000)
		pods := fake.NewClientset(gatedPod("first"))
		w := start(t, s, setting{admin: true, pods: pods, inForce: answer.Load})
		ready := func(when, name string, want bool) {
			t.Helper()
			p, err := pods.CoreV1().Pods("x").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			got := len(p.Status.Conditions) == 1 && p.Status.Conditions[0].Status == corev1.ConditionTrue
			if got != want {
				t.Errorf("%s: the conditions of %s are %v\n%s", when, name, p.Status.Conditions, w.log())
			}
		}
		settle(time.Minute)
		ready("all is in force", "first", true)

		newest := max(version("old"), version("new"))
		enforces(newest - 1)
		if err := pods.Tracker().Add(gatedPod("second")); err != nil {
			t.Fatal(err)
		}
		settle(2 * time.Minute)
		ready("the newest policy is not", "second", false)
		enforces(newest)
		settle(20 * time.Second)
		ready("the newest policy is", "second", true)

		s.Delete("x", "new")
		settle(time.Second)
		if err := pods.Tracker().Add(gatedPod("third")); err != nil {
			t.Fatal(err)
		}
		settle(time.Minute)
		ready("the deletion is not", "third", false)
		settle(deletionsCount)
		ready("the deletion is known by now", "third", true)
	})
}

func TestNewestVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		object := func(name, version string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}}
		}
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		var d deletions
		want := func(when, want string) {
			t.Helper()
			if got := d.newest(store); got != want {
				t.Errorf("%s, the newest version is %q, want %q", when, got, want)
			}
		}
		want("without objects", "")
		d.note(cache.DeletedFinalStateUnknown{Obj: object("a", "5")})
		want("after a list that lacks one", "")
		if err := store.Replace([]any{object("a", "9"), object("b", "10"), object("c", "8")}, ""); err != nil {
			t.Fatal(err)
		}
		want("of three", "10")
		d.note(object("d", "12"))
		want("after a deletion", "12")
		time.Sleep(deletionsCount)
		want("later", "10")
		if err := store.Replace([]any{object("a", "3")}, ""); err != nil {
			t.Fatal(err)
		}
		want("after a restore", "3")
	})
}
