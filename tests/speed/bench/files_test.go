package main

import (
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"
)

// kinds creates an object of each kind in the files for a real cluster.
var kinds = map[string]func() any{
	"ConfigMap":      func() any { return &corev1.ConfigMap{} },
	"Deployment":     func() any { return &appsv1.Deployment{} },
	"Job":            func() any { return &batchv1.Job{} },
	"Namespace":      func() any { return &corev1.Namespace{} },
	"NetworkPolicy":  func() any { return &networkingv1.NetworkPolicy{} },
	"Role":           func() any { return &rbacv1.Role{} },
	"RoleBinding":    func() any { return &rbacv1.RoleBinding{} },
	"Service":        func() any { return &corev1.Service{} },
	"ServiceAccount": func() any { return &corev1.ServiceAccount{} },
}

// objects decodes a file of docs/performance strictly.
func objects(t *testing.T, name string) []any {
	t.Helper()
	content, err := os.ReadFile("../../../docs/performance/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var out []any
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var typed metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &typed); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if kinds[typed.Kind] == nil {
			t.Fatalf("%s: kind %q is not known to the test", name, typed.Kind)
		}
		object := kinds[typed.Kind]()
		if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
			t.Fatalf("%s: %s: %v", name, typed.Kind, err)
		}
		out = append(out, object)
	}
	return out
}

// find returns the only object of type T.
func find[T any](t *testing.T, objects []any) (found T) {
	t.Helper()
	n := 0
	for _, object := range objects {
		if o, ok := object.(T); ok {
			found = o
			n++
		}
	}
	if n != 1 {
		t.Fatalf("%d objects of type %T, want 1", n, found)
	}
	return found
}

// The files for measurements on a real cluster are consistent: clients reach the backend
// through its Service and are allowed, and the further policies also select it.
func TestClusterFilesMatch(t *testing.T) {
	backend := objects(t, "backend.yaml")
	client := find[*batchv1.Job](t, objects(t, "job.yaml")).Spec.Template
	server := find[*appsv1.Deployment](t, backend).Spec.Template
	service := find[*corev1.Service](t, backend)
	allow := find[*networkingv1.NetworkPolicy](t, backend).Spec
	never := find[*networkingv1.NetworkPolicy](t, objects(t, "policy.yaml")).Spec

	selects := func(selector map[string]string, pod corev1.PodTemplateSpec) bool {
		return len(selector) > 0 && labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels))
	}
	for what, so := range map[string]bool{
		"the Service selects the backend":                selects(service.Spec.Selector, server),
		"the policy selects the backend":                 selects(allow.PodSelector.MatchLabels, server),
		"the policy allows the clients":                  selects(allow.Ingress[0].From[0].PodSelector.MatchLabels, client),
		"the further policies select the backend":        selects(never.PodSelector.MatchLabels, server),
		"no policy selects the clients":                  !selects(allow.PodSelector.MatchLabels, client) && !selects(never.PodSelector.MatchLabels, client),
		"the clients ask the Service":                    client.Spec.Containers[0].Command[len(client.Spec.Containers[0].Command)-1] == "http://"+service.Name+"/",
		"the Service's port is the container's":          service.Spec.Ports[0].TargetPort.String() == server.Spec.Containers[0].Ports[0].Name,
		"the policy's port is the container's":           allow.Ingress[0].Ports[0].Port.String() == server.Spec.Containers[0].Ports[0].Name,
		"the Deployment's selector selects its template": selects(find[*appsv1.Deployment](t, backend).Spec.Selector.MatchLabels, server),
	} {
		t.Run(what, func(t *testing.T) {
			if !so {
				t.Errorf("this does not hold: %s", what)
			}
		})
	}
}

// Prometheus selects the agents by the labels in install.yaml and may list them.
func TestPrometheusConfigSelectsAgents(t *testing.T) {
	all := objects(t, "prometheus.yaml")
	config := find[*corev1.ConfigMap](t, all).Data["prometheus.yml"]
	var parsed map[string]any
	if err := yaml.Unmarshal([]byte(config), &parsed); err != nil {
		t.Fatal(err)
	}
	install, err := os.ReadFile("../../../install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"app.kubernetes.io/name: netpol-agent\n", ":9080\n"} {
		if !strings.Contains(string(install), part) {
			t.Errorf("install.yaml does not have %q", part)
		}
		if part = strings.TrimPrefix(part, "app.kubernetes.io/name"); !strings.Contains(config, part) {
			t.Errorf("the configuration of Prometheus does not have %q:\n%s", part, config)
		}
	}

	role := find[*rbacv1.Role](t, all)
	if role.Namespace != "kube-system" || role.Rules[0].Resources[0] != "pods" {
		t.Errorf("Prometheus may not list the agents: %v", role)
	}
}
