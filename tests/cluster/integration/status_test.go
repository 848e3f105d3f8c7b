package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

// asWriter returns the rights of the status writer, as install.yaml gives them. The
// policy that comes with them is removed: tests count theirs.
func asWriter(t *testing.T, plane *controlplane.ControlPlane) *rest.Config {
	t.Helper()
	install(t, plane)
	newKubectl(t, plane.Admin()).run("delete", "-n", namespace, "networkpolicy", statusWriter)
	config, _ := account(t, plane, namespace, statusWriter)
	return config
}

// nodePorts is the policy of an author who opens all NodePorts with one range.
func nodePorts(namespace, name string) string {
	return fmt.Sprintf(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: %s
  namespace: %s
spec:
  podSelector: {}
  ingress:
  - ports:
    - port: 80
    - port: 30000
      endPort: 32767
  egress:
  - ports:
    - protocol: UDP
      port: 30000
      endPort: 32767
`, name, namespace)
}

// plain returns a policy that every implementation supports.
func plain(namespace, name string) string {
	text := nodePorts(namespace, name)
	return strings.ReplaceAll(text, "endPort: 32767", "")
}

// shows waits until kubectl shows these conditions of a NetworkPolicy, and returns
// them.
func shows(k *kubectl, namespace, name string, inStatus bool, want string) shownConditions {
	k.t.Helper()
	return k.shows(inStatus, want, "netpol", "-n", namespace, name)
}

// shows waits until kubectl shows these conditions of an object. They must be about the
// current spec.
func (k *kubectl) shows(inStatus bool, want string, what ...string) shownConditions {
	k.t.Helper()
	var conditions shownConditions
	eventually(k.t, func() string {
		var policy unstructured.Unstructured
		text := must[[]byte](k.t)(yaml.YAMLToJSON([]byte(k.run(slices.Concat([]string{"get", "-o", "yaml"}, what)...))))
		if err := policy.UnmarshalJSON(text); err != nil {
			k.t.Fatal(err)
		}
		conditions = conditionsOf(k.t, &policy, inStatus)
		for _, kind := range ours {
			if c, ok := conditions[kind]; ok && c.ObservedGeneration != policy.GetGeneration() {
				return fmt.Sprintf("%s is of generation %d, the policy of %d", c.Type, c.ObservedGeneration, policy.GetGeneration())
			}
		}
		if got := conditions.summary(); got != want {
			return fmt.Sprintf("%v: got %s, want %s", what, got, want)
		}
		return ""
	})
	return conditions
}

// onWriters runs a test on each server. inStatus reports whether the server stores
// conditions in the status.
func onWriters(t *testing.T, test func(t *testing.T, plane *controlplane.ControlPlane, inStatus bool)) {
	for _, s := range fleet {
		t.Run(s.name, func(t *testing.T) { test(t, s.start(t), s == statusOn) })
	}
}

// The first user story of the KEP that added the status: an author allows a range of
// ports on a cluster whose implementation does not support ranges.
func TestConditionsOfPortRange(t *testing.T) {
	onWriters(t, func(t *testing.T, plane *controlplane.ControlPlane, inStatus bool) {
		c := newCluster(t, plane)
		k := newKubectl(t, plane.Admin())
		w := startWriter(t, asWriter(t, plane), "--feature-gates=EndPort=false")
		k.apply(nodePorts(c.namespace, "range"))

		partial := shows(k, c.namespace, "range", inStatus, unsupported)["PartialFailure"]
		for _, field := range []string{"spec.ingress[0].ports[1].endPort: ", "spec.egress[0].ports[0].endPort: "} {
			if !strings.Contains(partial.Message, field) {
				t.Errorf("message %q does not name %s", partial.Message, field)
			}
		}
		if !inStatus {
			tellsInEvents(k, c.namespace, "range")
			// kubectl describe shows no Events of policies, and only the beginning of a long
			// annotation.
			for _, want := range []string{status.SummaryAnnotation, "spec.ingress[0].ports[1].endPort: endPort is switched off; the port matches nothing."} {
				if text := k.run("describe", "netpol", "-n", c.namespace, "range"); !strings.Contains(text, want) {
					t.Errorf("kubectl describe does not show %s:\n%s", want, text)
				}
			}
		}

		w.stop()
		startWriter(t, asWriter(t, plane)) // which knows ranges
		accepted := shows(k, c.namespace, "range", inStatus, clean)
		if again := accepted["Accepted"].LastTransitionTime; again.IsZero() {
			t.Error("Accepted has no time")
		}
	})
}

// tellsInEvents checks the output of kubectl events.
func tellsInEvents(k *kubectl, namespace, name string) {
	k.t.Helper()
	eventually(k.t, func() string {
		events := k.run("events", "-n", namespace, "--for", "networkpolicy/"+name)
		for _, want := range []string{"Warning", "FeatureNotSupported", "spec.ingress[0].ports[1].endPort", "spec.egress[0].ports[0].endPort"} {
			if !strings.Contains(events, want) {
				return fmt.Sprintf("kubectl events does not say %s:\n%s", want, events)
			}
		}
		return ""
	})
}

// A server may stop storing the status of policies, and start again.
func TestConditionsMoveWithTheServersStatus(t *testing.T) {
	plane := statusOn.start(t)
	c := newCluster(t, plane)
	k := newKubectl(t, plane.Admin())
	as := asWriter(t, plane)
	move := func(text string, annotates, inStatus bool, want string) {
		t.Helper()
		w := startWriter(t, as, "--feature-gates=EndPort=false")
		defer w.stop()
		k.apply(text)
		eventually(t, func() string {
			policy := must[*unstructured.Unstructured](t)(policies(t, plane, c.namespace).Get(t.Context(), "range", metav1.GetOptions{}))
			_, annotated := policy.GetAnnotations()[status.Annotation]
			inside, _, _ := unstructured.NestedSlice(policy.Object, "status", "conditions")
			if annotated != annotates || inStatus == (len(inside) == 0) {
				return fmt.Sprintf("annotated: %t, conditions in the status: %v", annotated, inside)
			}
			return ""
		})
		shows(k, c.namespace, "range", inStatus, want)
	}
	move(nodePorts(c.namespace, "range"), false, true, unsupported)
	restart(t, plane, func() {}, "--feature-gates=NetworkPolicyStatus=false")
	move(nodePorts(c.namespace, "range"), true, false, unsupported) // though the server still shows them
	move(plain(c.namespace, "range"), true, false, clean)
	restart(t, plane, func() {})
	move(nodePorts(c.namespace, "range"), false, true, unsupported)
}

// The conditions of a policy are those of its spec, never those of an earlier
// generation.
func TestConditionsMatchObservedGeneration(t *testing.T) {
	onWriters(t, func(t *testing.T, plane *controlplane.ControlPlane, inStatus bool) {
		c := newCluster(t, plane)
		k := newKubectl(t, plane.Admin())
		startWriter(t, asWriter(t, plane), "--feature-gates=EndPort=false")
		k.apply(plain(c.namespace, "flapping")) // generation 1
		const last = 20
		const limit = last * patience
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		changes := must[watch.Interface](t)(policies(t, plane, c.namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=flapping"}))
		defer changes.Stop()

		var author sync.WaitGroup
		author.Go(func() { flap(k, c.namespace, last) })
		defer author.Wait()
		seen := int64(0)
		for change := range changes.ResultChan() {
			policy, ok := change.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("watch ended: %v", change.Object)
			}
			conditions := conditionsOf(t, policy, inStatus)
			if len(conditions) == 0 {
				continue
			}
			seen = conditions["Accepted"].ObservedGeneration
			if got, want := conditions.summary(), []string{unsupported, clean}[seen%2]; got != want {
				t.Errorf("generation %d has %s, want %s", seen, got, want)
			}
			if seen == last {
				return
			}
		}
		t.Errorf("after %s the conditions are those of generation %d, want %d", limit, seen, last)
	})
}

// flap changes a policy until it has that generation: even ones have a range.
func flap(k *kubectl, namespace string, last int) {
	for generation := 2; generation <= last; generation++ {
		text := plain
		if generation%2 == 0 {
			text = nodePorts
		}
		if _, err := k.try(text(namespace, "flapping"), "apply", "--server-side", "-f", "-"); err != nil {
			k.t.Error(err)
			return
		}
	}
}

// TestFirstStart: a status writer that starts in a cluster with policies writes once to each, and then nothing.
// POLICIES=10000 measures a large cluster.
func TestFirstStart(t *testing.T) {
	plane := newest.start(t)
	c := newCluster(t, plane)
	policies := 60
	if n, err := strconv.Atoi(os.Getenv("POLICIES")); err == nil {
		policies = n
	}
	var list strings.Builder
	for i := range policies {
		fmt.Fprintf(&list, "%s\n---\n", plain(c.namespace, fmt.Sprint("p-", i)))
	}
	newKubectl(t, plane.Admin()).apply(list.String())
	as := asWriter(t, plane)
	program(t, "status-writer") // built before the time begins
	began := time.Now()
	w := startWriter(t, as)
	eventuallyWithin(t, patience+time.Duration(policies)*time.Second, func() string {
		const series = `netpol_status_writes_total{kind="NetworkPolicy",result="success",sink="annotation"}`
		if got := w.metric(series); got != fmt.Sprint(policies) {
			return fmt.Sprintf("%s is %q, want %d", series, got, policies)
		}
		return ""
	})
	t.Logf("%d policies: %v", policies, time.Since(began).Round(time.Second))
	w.settled("NetworkPolicy", nil)
}
