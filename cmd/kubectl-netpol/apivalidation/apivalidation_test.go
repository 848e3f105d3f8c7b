package apivalidation_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	unstructuredjson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/apivalidation"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/apivalidation/apivalidationtest"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

func casesOf(t testing.TB, kind *compile.Kind) []apivalidationtest.Case {
	t.Helper()
	cases, err := apivalidationtest.Cases(kind)
	if err != nil {
		t.Fatal(err)
	}
	return cases
}

// fields returns the paths of errors, sorted and without duplicates.
func fields(errs field.ErrorList) []string {
	var paths []string
	for _, err := range errs {
		path := err.Field
		if path == "<nil>" { // the object as a whole
			path = ""
		}
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func TestCases(t *testing.T) {
	for _, kind := range compile.Kinds {
		for _, tc := range casesOf(t, kind) {
			for _, r := range kind.Resources() {
				t.Run(kind.Name+"/"+r.Version+"/"+tc.Name, func(t *testing.T) {
					tc.Object["apiVersion"] = r.GroupVersion().String()
					before := runtime.DeepCopyJSON(tc.Object)
					errs := apivalidation.Validate(tc.Object)
					if got := fields(errs); !slices.Equal(got, tc.Refused) {
						t.Errorf("got %q, want %q: %v", got, tc.Refused, errs.ToAggregate())
					}
					if !equalJSON(t, before, tc.Object) {
						t.Error("the object has changed")
					}
				})
			}
		}
	}
}

func equalJSON(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(x) == string(y)
}

// Every kind that agents know is validated, and no other.
func TestKnows(t *testing.T) {
	for _, k := range append(slices.Clone(compile.Kinds), compile.KindCIDRGroup) {
		for _, r := range k.Resources() {
			if !apivalidation.Knows(r.GroupVersion().WithKind(k.Name)) {
				t.Errorf("%s of %s is not known", k, r.Version)
			}
		}
	}
	for _, kind := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "NetworkPolicy"},
		{Group: "extensions", Version: "v1beta1", Kind: "NetworkPolicy"},
		{Group: "policy.networking.k8s.io", Version: "v1beta1", Kind: "AdminNetworkPolicy"},
		{Version: "v1", Kind: "Pod"},
	} {
		if apivalidation.Knows(kind) {
			t.Errorf("%v is known", kind)
		}
	}
}

func TestWhatIsNoPolicy(t *testing.T) {
	for object, want := range map[string]string{
		`{}`:                            `[apiVersion: Required value, kind: Required value]`,
		`{"apiVersion":1,"kind":"Pod"}`: `apiVersion: Invalid value: 1: must be a string`,
		`{"apiVersion":"v1","kind":"NetworkPolicy"}`:                                                                        `kind: Invalid value: "NetworkPolicy": v1 has no such kind of policy`,
		`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy"}`:                                                      `metadata.name: Required value`,
		`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":7}`:                                         `metadata: Invalid value: "number": must be of type v1.ObjectMeta`,
		`{"apiVersion":"policy.networking.k8s.io/v1beta1","kind":"ClusterNetworkPolicy"}`:                                   `[metadata.name: Required value, metadata: Required value, spec: Required value]`,
		`{"apiVersion":"policy.networking.k8s.io/v1alpha1","kind":"AdminNetworkPolicy","metadata":{"name":"a"},"spec":"b"}`: `spec: Invalid value: "string": spec in body must be of type object: "string"`,
	} {
		t.Run(object, func(t *testing.T) {
			var o map[string]any
			if err := unstructuredjson.Unmarshal([]byte(object), &o); err != nil {
				t.Fatal(err)
			}
			if got := apivalidation.Validate(o).ToAggregate().Error(); got != want {
				t.Errorf("%s: got\n%s\nwant\n%s", object, got, want)
			}
		})
	}
}

// Messages contain the value and explain the fault in words that an author understands.
func TestMessages(t *testing.T) {
	var all []string
	for _, kind := range compile.Kinds {
		for _, tc := range casesOf(t, kind) {
			for _, err := range apivalidation.Validate(tc.Object) {
				all = append(all, err.Error())
			}
		}
	}
	for _, want := range []string{
		`spec.egress[0].to[1].networks[1]: Invalid value: "10.0.0.1/8": Invalid CIDR format provided`,
		`spec.priority: Invalid value: 1001: spec.priority in body should be less than or equal to 1000`,
		`spec.ingress: Too many: 101: must have at most 100 items`,
		`spec.policyTypes: Invalid value: ["Ingress","Egress","Ingress"]: must not have more than two items`,
		`spec.ingres: Forbidden: unknown field`,
		`spec.ingress[0].ports[0].endPort: Invalid value: 79: must not be less than port`,
	} {
		if !slices.Contains(all, want) {
			t.Errorf("no error contains %q:\n%s", want, strings.Join(all, "\n"))
		}
	}
}

// No object makes Validate panic.
func TestMutations(t *testing.T) {
	for _, kind := range compile.Kinds {
		refused, accepted := 0, 0
		for _, tc := range casesOf(t, kind) {
			if len(tc.Refused) > 0 || tc.Object["spec"] == nil {
				continue
			}
			for _, o := range apivalidationtest.Mutations(tc.Object) {
				if len(apivalidation.Validate(o)) > 0 {
					refused++
				} else {
					accepted++
				}
			}
		}
		if refused < 50 || accepted < 5 {
			t.Errorf("%s: %d refused, %d accepted", kind, refused, accepted)
		}
	}
}

func FuzzValidate(f *testing.F) {
	for _, kind := range compile.Kinds {
		for _, tc := range casesOf(f, kind) {
			data, err := json.Marshal(tc.Object)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var o map[string]any
		if unstructuredjson.Unmarshal(data, &o) == nil && o != nil {
			apivalidation.Validate(o)
		}
	})
}
