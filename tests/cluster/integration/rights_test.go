package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"sigs.k8s.io/kube-network-policies/pkg/status"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
)

// A server of 1.27 whose feature gate is off answers 200 and does not store the
// status. The status writer must notice.
func TestStatusThatIsNotStored(t *testing.T) {
	for _, s := range []*server{statusOn, statusOff} {
		t.Run(s.name, func(t *testing.T) {
			plane := s.start(t)
			c := newCluster(t, plane)
			newKubectl(t, plane.Admin()).apply(plain(c.namespace, "fine"))
			answer := applyForeignCondition(t, policies(t, plane, c.namespace), "NetworkPolicy", c.namespace, "fine")
			if got, want := len(foreignConditions(t, answer)) > 0, s == statusOn; got != want {
				t.Errorf("the condition is stored: %t, want %t", got, want)
			}
		})
	}
}

const foreignType = "example.com/Audited"

// applyForeignCondition stores a condition of another field manager and returns the
// server's answer.
func applyForeignCondition(t *testing.T, api dynamic.ResourceInterface, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	version := map[string]string{"NetworkPolicy": "networking.k8s.io/v1", "AdminNetworkPolicy": "policy.networking.k8s.io/v1alpha1"}[kind]
	policy := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": version, "kind": kind,
		"metadata": map[string]any{"namespace": namespace, "name": name},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": foreignType, "status": "True", "reason": "Audited", "message": "by hand", "lastTransitionTime": "2026-01-01T00:00:00Z",
		}}},
	}}
	return must[*unstructured.Unstructured](t)(api.Apply(t.Context(), name, policy, metav1.ApplyOptions{FieldManager: "auditor"}, "status"))
}

func foreignConditions(t *testing.T, policy *unstructured.Unstructured) []any {
	t.Helper()
	list, _, err := unstructured.NestedSlice(policy.Object, "status", "conditions")
	if err != nil {
		t.Fatal(err)
	}
	var foreign []any
	for _, c := range list {
		if c.(map[string]any)["type"] == foreignType {
			foreign = append(foreign, c)
		}
	}
	return foreign
}

// The fields of other managers stay unchanged, while the writer runs and after its
// own fields are removed.
func TestForeignFieldsStay(t *testing.T) {
	onWriters(t, func(t *testing.T, plane *controlplane.ControlPlane, inStatus bool) {
		c := newCluster(t, plane)
		k := newKubectl(t, plane.Admin())
		k.apply(nodePorts(c.namespace, "range"))
		k.run("annotate", "netpol", "-n", c.namespace, "range", "example.com/owner=me")
		if inStatus {
			applyForeignCondition(t, policies(t, plane, c.namespace), "NetworkPolicy", c.namespace, "range")
		}
		api := policies(t, plane, c.namespace)
		read := func() *unstructured.Unstructured {
			return must[*unstructured.Unstructured](t)(api.Get(t.Context(), "range", metav1.GetOptions{}))
		}
		without := read()

		as := asWriter(t, plane)
		w := startWriter(t, as, "--feature-gates=EndPort=false")
		eventually(t, func() string {
			if got := conditionsOf(t, read(), inStatus).summary(); got != unsupported {
				return "conditions are " + got
			}
			return ""
		})
		wantForeignFields(t, without, read())
		w.stop()

		cleanUp(t, plane)
		clean := read()
		if got := conditionsOf(t, clean, inStatus).summary(); got != "" {
			t.Errorf("after cleanup conditions are %s", got)
		}
		wantForeignFields(t, without, clean)
		for _, owner := range clean.GetManagedFields() {
			if fields := owner.FieldsV1.GetRawString(); owner.Manager == status.FieldManager && strings.Contains(fields, "conditions") {
				t.Errorf("after cleanup the writer still owns %s", fields)
			}
		}
	})
}

// cleanUp removes everything that the writer has written, as the Job of uninstall.yaml does.
func cleanUp(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	newKubectl(t, plane.Admin()).run("apply", "--server-side", "--validate=strict", "-f", uninstallFile)
	as, _ := account(t, plane, namespace, uninstaller)
	if said, err := writerCommand(t, as, "cleanup").CombinedOutput(); err != nil {
		t.Fatalf("cleanup: %v\n%s", err, said)
	}
}

// wantForeignFields checks that two states of a policy differ only in the fields of the
// writer.
func wantForeignFields(t *testing.T, before, after *unstructured.Unstructured) {
	t.Helper()
	strip := func(o *unstructured.Unstructured) string {
		o = o.DeepCopy()
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		annotations := o.GetAnnotations()
		delete(annotations, status.Annotation)
		delete(annotations, status.SummaryAnnotation)
		delete(annotations, status.RemovedAnnotation)
		o.SetAnnotations(annotations)
		kept := foreignConditions(t, o)
		unstructured.RemoveNestedField(o.Object, "status")
		return string(must[[]byte](t)(json.Marshal(o.Object))) + fmt.Sprint(kept)
	}
	if strip(before) != strip(after) {
		t.Errorf("it was\n%s\nand is\n%s", strip(before), strip(after))
	}
}

// Without the guard, the right to annotate is the right to change every field.
func TestGuardLimitsWriterToAnnotations(t *testing.T) {
	onInstallations(t, []*server{newest}, func(t *testing.T, plane *controlplane.ControlPlane, i installation) {
		i.apply(t, plane)
		guards(t, plane)
	})
}

func guards(t *testing.T, plane *controlplane.ControlPlane) {
	k := newKubectl(t, plane.Admin())
	k.run("apply", "--server-side", "--validate=strict", "-f", guardFile)
	c := newCluster(t, plane)
	k.apply(nodePorts(c.namespace, "range"))
	_, client := account(t, plane, namespace, statusWriter)
	patch := func(text string) error {
		_, err := client.NetworkingV1().NetworkPolicies(c.namespace).Patch(t.Context(), "range", types.MergePatchType, []byte(text),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	const opens = `{"spec":{"ingress":[{}]}}`
	// A server applies a new admission policy after a moment.
	eventually(t, func() string {
		if err := patch(opens); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			return fmt.Sprintf("a change of the spec: got %v, want a refusal", err)
		}
		return ""
	})
	for _, text := range []string{
		`{"spec":{"podSelector":{"matchLabels":{"a":"b"}}}}`,
		`{"metadata":{"annotations":{"example.com/owner":"me"}}}`,
		`{"metadata":{"labels":{"a":"b"}}}`,
		`{"metadata":{"finalizers":["example.com/never"]}}`,
	} {
		if err := patch(text); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("%s: got %v, want a refusal", text, err)
		}
	}
	if err := patch(fmt.Sprintf(`{"metadata":{"annotations":{%q:"[]",%q:"nothing",%q:"nothing"}}}`, status.Annotation, status.SummaryAnnotation, status.RemovedAnnotation)); err != nil {
		t.Errorf("its own annotations: %v", err)
	}
	// The guard does not apply to other users.
	admin := policies(t, plane, c.namespace)
	must[*unstructured.Unstructured](t)(admin.Patch(t.Context(), "range", types.MergePatchType, []byte(opens), metav1.PatchOptions{}))

	config, _ := account(t, plane, namespace, statusWriter)
	startWriter(t, config, "--feature-gates=EndPort=false")
	k.apply(nodePorts(c.namespace, "guarded"))
	shows(k, c.namespace, "guarded", false, unsupported)
}

// The writer continues without the missing right, and reports it.
func TestWriterWithoutPatchRightStoresNothing(t *testing.T) {
	plane := newest.start(t)
	c := newCluster(t, plane)
	k := newKubectl(t, plane.Admin())
	k.apply(nodePorts(c.namespace, "range"))
	as := asWriter(t, plane)
	const withoutPatch = `[{"op":"replace","path":"/rules/0/verbs","value":["list","watch"]}]`
	k.run("patch", "clusterrole", statusWriter, "--type=json", "-p", withoutPatch)
	t.Cleanup(func() {
		if _, err := k.with(context.Background(), "", "apply", "--server-side", "--force-conflicts", "-f", installFile); err != nil {
			t.Error(err)
		}
	})
	w := startWriter(t, as, "--feature-gates=EndPort=false")
	eventually(t, func() string {
		if got := w.metric(`netpol_status_sink_usable{kind="NetworkPolicy",sink="annotation"}`); got != "0" {
			return fmt.Sprintf("the annotation is usable: %q, want 0", got)
		}
		return ""
	})
	tellsInEvents(k, c.namespace, "range")
	read := must[*networkingv1.NetworkPolicy](t)(c.client.NetworkingV1().NetworkPolicies(c.namespace).Get(t.Context(), "range", metav1.GetOptions{}))
	if got, ok := read.Annotations[status.Annotation]; ok {
		t.Errorf("the policy has the annotation %q", got)
	}
	// Only the text of the server's answer distinguishes a missing right from an admission
	// plugin that refuses one policy.
	w.stop()
	if !strings.Contains(w.log.String(), `"Sink cannot be used"`) {
		t.Errorf("the missing right was not noticed:\n%s", w.log.String())
	}
}
