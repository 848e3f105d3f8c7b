package install

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// adminFlag enables administrators' policies, of the agent and of the writer.
const adminFlag = "--admin-policies"

// The administrators' kinds change nothing else.
func TestFilesDifferInAdminKindsOnly(t *testing.T) {
	plain, admin := decode(t, installFile), withoutKinds(decode(t, adminFile))
	if len(admin) != len(plain) {
		t.Fatalf("%s has %d objects of its own, %s has %d", adminFile, len(admin), installFile, len(plain))
	}
	for i, want := range plain {
		if diff := cmp.Diff(want, admin[i]); diff != "" {
			t.Errorf("%T %s differs (-%s +%s):\n%s", want, want.(metav1.Object).GetName(), installFile, adminFile, diff)
		}
	}
}

// withoutKinds takes from objects what is about administrators' policies.
func withoutKinds(objects []runtime.Object) []runtime.Object {
	isFlag := func(arg string) bool { return arg == adminFlag }
	var left []runtime.Object
	for _, o := range objects {
		switch o := o.(type) {
		case *rbacv1.ClusterRole:
			o.Rules = slices.DeleteFunc(o.Rules, func(r rbacv1.PolicyRule) bool { return slices.Equal(r.APIGroups, []string{v1beta1.GroupName}) })
		case *appsv1.DaemonSet:
			c := &o.Spec.Template.Spec.Containers[0]
			c.Args = slices.DeleteFunc(c.Args, isFlag)
		case *appsv1.Deployment:
			c := &o.Spec.Template.Spec.Containers[0]
			c.Args = slices.DeleteFunc(c.Args, isFlag)
		case *rbacv1.Role:
			if o.Name == agentName {
				continue // to read where DNS is
			}
		case *rbacv1.RoleBinding:
			if o.Name == agentName {
				continue
			}
		}
		left = append(left, o)
	}
	return left
}

func TestAdminKindsAreEnabledForBoth(t *testing.T) {
	_, agents := agent(t, adminFile)
	_, writers := writer(t, adminFile)
	if !slices.Contains(agents.Args, adminFlag) || !slices.Contains(writers.Args, adminFlag) {
		t.Errorf("%s is not given to both: agents have %v, the writer %v", adminFlag, agents.Args, writers.Args)
	}
}

func TestAgentMayReadDNSService(t *testing.T) {
	role, binding := named[*rbacv1.Role](t, adminFile, agentName), named[*rbacv1.RoleBinding](t, adminFile, agentName)
	checkReads(t, role.Rules, []string{"/services", "discovery.k8s.io/endpointslices"})
	account := named[*corev1.ServiceAccount](t, adminFile, agentName)
	if role.Namespace != metav1.NamespaceSystem || binding.Namespace != role.Namespace ||
		binding.RoleRef.Kind != "Role" || binding.RoleRef.Name != role.Name || !slices.Equal(binding.Subjects, subjects(account)) {
		t.Errorf("the role of %s is bound in %s as %v to %v", role.Namespace, binding.Namespace, binding.RoleRef, binding.Subjects)
	}
}
