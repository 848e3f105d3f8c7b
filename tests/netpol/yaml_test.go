package netpol

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const somePods = `# pods and a policy
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web, labels: {app: web}}
spec: {containers: [{name: web, ports: [{name: http, containerPort: 8080}, {containerPort: 53, protocol: UDP}]}]}
---
# nothing here
---
apiVersion: v1
kind: Pod
metadata: {name: other}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: deny}
spec: {podSelector: {}}
`

const adminPolicies = `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: a}
spec: {priority: 1, subject: {namespaces: {}}}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec: {subject: {namespaces: {}}}
---
apiVersion: policy.networking.k8s.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: a}
spec: {tier: Admin, priority: 1, subject: {namespaces: {}}}
`

func TestLoad(t *testing.T) {
	state, err := Load(fstest.MapFS{
		"all.yaml":       {Data: []byte(somePods)},
		"deep/ns.json":   {Data: []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop","labels":{"team":"red"}}}`)},
		"deep/README.md": {Data: []byte("not read")},
		"admin.yaml":     {Data: []byte(adminPolicies)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := state.Endpoints(), []string{"shop/web", "default/other"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
	if got, want := state.Ports, []int32{53, 8080}; !slices.Equal(got, want) {
		t.Errorf("ports %v, want %v", got, want)
	}
	for name, label := range map[string]string{"shop": "team", "default": "kubernetes.io/metadata.name"} {
		if state.Namespace(name).Labels[label] == "" {
			t.Errorf("namespace %s has no label %s", name, label)
		}
	}
	var names []string
	for _, p := range state.AllPolicies() {
		names = append(names, PolicyName(p))
	}

	if want := []string{"shop/deny", "AdminNetworkPolicy/a", "BaselineAdminNetworkPolicy/default", "ClusterNetworkPolicy/a"}; !slices.Equal(names, want) {
		t.Errorf("policies %v, want %v", names, want)
	}
}

func TestLoadRejectsInvalidFiles(t *testing.T) {
	for want, text := range map[string]string{
		"is not one of":               "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
		"unknown":                     "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {contaners: []}\n",
		"duplicate pod default/other": somePods + "---\n" + somePods,
		"no Pod":                      "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n",
		"a.yaml":                      "apiVersion: [\n",
		"duplicate policy ClusterNetworkPolicy/a": somePods + "---\n" + adminPolicies + "---\n" + adminPolicies[strings.Index(adminPolicies, "apiVersion: policy.networking.k8s.io/v1beta1"):],
		"duplicate policy shop/deny":              somePods + "---\n" + somePods[strings.Index(somePods, "apiVersion: networking"):],
	} {
		t.Run(want, func(t *testing.T) {
			_, err := Load(fstest.MapFS{"a.yaml": {Data: []byte(text)}})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		})
	}
}
