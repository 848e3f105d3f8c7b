package integration

import (
	"errors"
	"maps"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/apivalidation"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/apivalidation/apivalidationtest"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/crds"
)

// kubectl-netpol refuses exactly what servers refuse: each case is created as a dry run, and
// so are mutations of each field of the accepted cases.
func TestValidationIsThatOfServers(t *testing.T) {
	on(t, releases, func(t *testing.T, plane *controlplane.ControlPlane) {
		client := manyRequests(t, plane).Resource(compile.KindNetworkPolicy.Resource).Namespace(newCluster(t, plane).namespace)
		compareValidation(t, client, compile.KindNetworkPolicy, plane == newest.plane)
	})
	on(t, []*server{newest}, func(t *testing.T, plane *controlplane.ControlPlane) {
		define(t, plane, crds.V017, crds.Experimental)
		define(t, plane, crds.V030, crds.Experimental)
		for _, kind := range compile.Kinds {
			if !kind.Namespaced {
				t.Run(kind.Name, func(t *testing.T) {
					compareValidation(t, manyRequests(t, plane).Resource(kind.Resource), kind, true)
				})
			}
		}
	})
}

// manyRequests returns a client whose requests do not wait for each other.
func manyRequests(t *testing.T, plane *controlplane.ControlPlane) dynamic.Interface {
	t.Helper()
	config := rest.CopyConfig(plane.Admin())
	config.QPS = -1
	return must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(config))
}

// compareValidation compares the cases of a kind, and their mutations. Older servers
// do not have all rules, nor name the same fields.
func compareValidation(t *testing.T, client dynamic.ResourceInterface, kind *compile.Kind, isNewest bool) {
	compared, refused := 0, 0
	compare := func(what string, object map[string]any, newer []string) {
		t.Helper()
		here := fieldsOf(apivalidation.Validate(object))
		there, read, accepted := create(t, client, object)
		compared++
		if !accepted {
			refused++
		}
		switch {
		case isNewest && len(newer) > 0:
			if !slices.Equal(there, newer) {
				t.Errorf("%s: the server refuses %q, want %q", what, there, newer)
			}
		case accepted != (len(here) == 0):
			t.Errorf("%s: the server accepts it: %t, and refuses %q; refused here are %q\n%v", what, accepted, there, here, object)
		case isNewest && read && !slices.Equal(there, here):
			t.Errorf("%s: the server refuses %q, here refused are %q\n%v", what, there, here, object)
		}
	}
	for _, tc := range must[[]apivalidationtest.Case](t)(apivalidationtest.Cases(kind)) {
		compare(tc.Name, tc.Object, tc.Newer)
		if len(tc.Refused) > 0 || len(tc.Newer) > 0 || tc.Object["spec"] == nil {
			continue
		}
		for what, o := range apivalidationtest.Mutations(tc.Object) {
			compare(tc.Name+", "+what, o, nil)
		}
	}
	t.Logf("%d policies compared, of which %d are refused", compared, refused)
}

// fieldsOf returns the paths of errors, sorted, each once.
func fieldsOf(errs field.ErrorList) []string {
	paths := map[string]bool{}
	for _, err := range errs {
		paths[err.Field] = true
	}
	return slices.Sorted(maps.Keys(paths))
}

// create creates an object as a dry run, and returns the fields that the server
// refuses, and whether it could read the object.
func create(t *testing.T, client dynamic.ResourceInterface, object map[string]any) (fields []string, read, accepted bool) {
	t.Helper()
	_, err := client.Create(t.Context(), &unstructured.Unstructured{Object: runtime.DeepCopyJSON(object)}, metav1.CreateOptions{
		DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
	})
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil, true, true
	case apierrors.IsBadRequest(err):
		return nil, false, false
	case !apierrors.IsInvalid(err) || !errors.As(err, &status):
		t.Fatal(err)
	}
	paths := map[string]bool{}
	for _, cause := range status.Status().Details.Causes {
		if cause.Message != unchecked {
			paths[cause.Field] = true
		}
	}
	return slices.Sorted(maps.Keys(paths)), true, false
}

// unchecked is the message of servers that did not evaluate all rules.
const unchecked = `Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation`
