package install

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"sigs.k8s.io/kube-network-policies/pkg/status/gate"
)

const (
	readinessFile = "install-readiness.yaml"
	readinessName = writerName + "-pods"
)

func TestReadinessRights(t *testing.T) {
	role, binding := named[*rbacv1.ClusterRole](t, readinessFile, readinessName), named[*rbacv1.ClusterRoleBinding](t, readinessFile, readinessName)
	if got, want := rights(role.Rules), []string{"/pods[] list,watch", "/pods/status[] patch"}; !slices.Equal(got, want) {
		t.Errorf("the cluster role gives %q, want %q", got, want)
	}
	account := named[*corev1.ServiceAccount](t, installFile, writerName)
	if binding.RoleRef.Name != role.Name || binding.RoleRef.Kind != "ClusterRole" || !slices.Equal(binding.Subjects, subjects(account)) {
		t.Errorf("%v is bound to %v", binding.RoleRef, binding.Subjects)
	}
}

// kubectl applies a file from the top: the writer has the right only with the guard, and a server that
// does not know guards refuses the file.
func TestReadinessGuardComesFirst(t *testing.T) {
	guard := named[*admissionv1.ValidatingAdmissionPolicy](t, readinessFile, readinessName)
	binding := named[*admissionv1.ValidatingAdmissionPolicyBinding](t, readinessFile, readinessName)
	if binding.Spec.PolicyName != guard.Name || !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the binding is %+v", binding.Spec)
	}
	if *guard.Spec.FailurePolicy != admissionv1.Fail {
		t.Error("the guard lets pass what it cannot check")
	}
	account := named[*corev1.ServiceAccount](t, installFile, writerName)
	user := fmt.Sprintf("request.userInfo.username == 'system:serviceaccount:%s:%s'", account.Namespace, account.Name)
	if c := guard.Spec.MatchConditions; len(c) != 1 || c[0].Expression != user {
		t.Errorf("the guard is for %v, want %s", c, user)
	}
	for _, c := range []corev1.PodConditionType{gate.NetworkReady, gate.PoliciesEnforced} {
		if v := guard.Spec.Variables; len(v) == 0 || v[0].Name != "ours" || !strings.Contains(v[0].Expression, fmt.Sprintf("'%s'", c)) {
			t.Errorf("the conditions are %v, want %s", v, c)
		}
	}
	var kinds []string
	for _, o := range decode(t, readinessFile) {
		kinds = append(kinds, o.GetObjectKind().GroupVersionKind().Kind)
	}
	if want := []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ClusterRole", "ClusterRoleBinding"}; !slices.Equal(kinds, want) {
		t.Errorf("the kinds are %q, want %q", kinds, want)
	}
}

func TestReadinessGuard(t *testing.T) {
	const (
		ours   = `{type: ` + string(gate.NetworkReady) + `, status: "%s", reason: x}`
		old    = `{type: ` + string(gate.PoliciesEnforced) + `, status: "%s", reason: x}`
		others = `{type: Ready, status: "False"}`
		spec   = `spec: {nodeName: a, readinessGates: [{conditionType: example.com/x}, {conditionType: ` + string(gate.NetworkReady) + `}]}`
		both   = `spec: {nodeName: a, readinessGates: [{conditionType: ` + string(gate.PoliciesEnforced) + `}, {conditionType: ` + string(gate.NetworkReady) + `}]}`
		meta   = `metadata: {name: web, labels: {app: web}}`
	)
	pod := func(meta, spec, phase string, conditions ...string) string {
		return fmt.Sprintf("{%s, %s, status: {phase: %s, podIP: 10.0.0.1, conditions: [%s]}}", meta, spec, phase, strings.Join(conditions, ", "))
	}
	isTrue, isFalse := fmt.Sprintf(ours, "True"), fmt.Sprintf(ours, "False")
	before := pod(meta, spec, "Running", others)
	for _, tc := range []struct {
		name, old, object string
		want              []string // of each message
	}{
		{"the condition becomes true", before, pod(meta, spec, "Running", others, isTrue), nil},
		{"the condition becomes false", before, pod(meta, spec, "Running", isFalse, others), nil},
		{"from false to true", pod(meta, spec, "Running", isFalse, others), pod(meta, spec, "Running", others, isTrue), nil},
		{"the first condition", "{" + meta + ", " + spec + ", status: {phase: Running, podIP: 10.0.0.1}}", pod(meta, spec, "Running", isTrue), nil},
		{"the deprecated condition", pod(meta, strings.Replace(spec, string(gate.NetworkReady), string(gate.PoliciesEnforced), 1), "Running"), pod(meta, strings.Replace(spec, string(gate.NetworkReady), string(gate.PoliciesEnforced), 1), "Running", fmt.Sprintf(old, "True")), nil},
		{"both conditions", pod(meta, both, "Running", others), pod(meta, both, "Running", others, isTrue, fmt.Sprintf(old, "True")), nil},
		{"the other one of both", pod(meta, both, "Running", fmt.Sprintf(old, "True")), pod(meta, both, "Running", isTrue, fmt.Sprintf(old, "True")), nil},
		{"one of both taken back", pod(meta, both, "Running", fmt.Sprintf(old, "True")), pod(meta, both, "Running", isTrue, fmt.Sprintf(old, "False")), []string{"does not take back"}},
		{"one of both removed", pod(meta, both, "Running", isTrue, fmt.Sprintf(old, "True")), pod(meta, both, "Running", isTrue), []string{"does not take back"}},
		{"a gate that the pod does not name", before, pod(meta, spec, "Running", others, fmt.Sprintf(old, "True")), []string{"no condition but its own"}},
		{"another plugin's gate", before, pod(meta, spec, "Running", others, `{type: example.com/x, status: "True"}`), []string{"no condition but its own"}},
		{"a pod without the gate", pod(meta, "spec: {nodeName: a}", "Running"), pod(meta, "spec: {nodeName: a}", "Running", isTrue), []string{"only pods with its readiness gate", "no condition but its own"}},
		{"back to false", pod(meta, spec, "Running", isTrue), pod(meta, spec, "Running", isFalse), []string{"does not take back"}},
		{"removed", pod(meta, spec, "Running", others, isTrue), before, []string{"does not take back"}},
		{"another condition", before, pod(meta, spec, "Running", `{type: Ready, status: "True"}`), []string{"no condition but its own"}},
		{"another condition removed", before, pod(meta, spec, "Running", isTrue), []string{"no condition but its own"}},
		{"another condition added", before, pod(meta, spec, "Running", others, `{type: example.com/x, status: "True"}`), []string{"no condition but its own"}},
		{"labels", before, pod(`metadata: {name: web, labels: {app: db}}`, spec, "Running", others), []string{"no metadata"}},
		{"annotations", before, pod(`metadata: {name: web, labels: {app: web}, annotations: {a: b}}`, spec, "Running", others), []string{"no metadata"}},
		{"finalizers", before, pod(`metadata: {name: web, labels: {app: web}, finalizers: [a/b]}`, spec, "Running", others), []string{"no metadata"}},
		{"the phase", before, pod(meta, spec, "Failed", others), []string{"nothing else"}},
		{"addresses", before, strings.Replace(before, "10.0.0.1", "10.0.0.2", 1), []string{"nothing else"}},
		{"no address", before, strings.Replace(before, "podIP: 10.0.0.1, ", "", 1), []string{"nothing else"}},
		{"more of the status", before, strings.Replace(before, "phase:", "nominatedNodeName: b, phase:", 1), []string{"nothing else"}},
		{"the spec", before, strings.Replace(before, "nodeName: a", "nodeName: b", 1), []string{"nothing else"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := warnings(t, named[*admissionv1.ValidatingAdmissionPolicy](t, readinessFile, readinessName), tc.old, tc.object)
			if len(got) != len(tc.want) {
				t.Fatalf("refused for %q, want %q", got, tc.want)
			}
			for i, want := range tc.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("refused for %q, want %q", got, tc.want)
				}
			}
		})
	}
}
