package status

import (
	"encoding/json"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// FuzzForeignConditions inserts what other managers may have written, well formed or not, among
// our conditions. We read ours and nothing else, and see whether they are current.
func FuzzForeignConditions(f *testing.F) {
	for _, list := range []string{
		`[]`,
		`[{"type":"Programmed","status":"True","reason":"Yes","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]`,
		`[{"type":"example.com/Accepted","status":"False","observedGeneration":7},{"type":"accepted"},{"type":"Accepted "}]`,
		`[{"type":7},{"status":[1]},{"lastTransitionTime":"yesterday"},null,"Accepted",[],{}]`,
	} {
		f.Add(list, "", uint8(0))
		f.Add(list, "example.com", uint8(1))
	}
	f.Fuzz(func(t *testing.T, list, prefix string, at uint8) {
		var foreign []any
		if err := json.Unmarshal([]byte(list), &foreign); err != nil {
			t.Skip()
		}
		foreign = slices.DeleteFunc(foreign, func(item any) bool {
			fields, _ := item.(map[string]any)
			kind, _ := fields["type"].(string)
			_, ours := withoutPrefix(prefix, metav1.Condition{Type: kind})
			return ours
		})
		conditions := Conditions(1, []policy.Finding{{Reason: policy.InvalidPort, Message: "m"}}, false)
		all := slices.Insert(foreign, int(at)%(len(foreign)+1), fieldsOf(t, withPrefix(prefix, conditions))...)
		o := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": all}}}
		o.SetAnnotations(map[string]string{Annotation: list})

		sink := &subresource{prefix: prefix}
		if got := sink.Read(o); !sameConditions(got, conditions) {
			t.Errorf("read %v among %s", got, list)
		}
		if !sink.Stores(o, conditions) {
			t.Errorf("our conditions are not current among %s", list)
		}
		if sink.Stores(o, Conditions(2, nil, false)) {
			t.Errorf("conditions of another generation are current among %s", list)
		}
		inAnnotation := &annotation{prefix: prefix}
		for _, c := range inAnnotation.Read(o) {
			if _, ours := withoutPrefix("", c); !ours {
				t.Errorf("read %v from the annotation %s", c, list)
			}
		}
		if inAnnotation.Stores(o, Conditions(1, nil, false)) {
			t.Errorf("the annotation %s is left on a policy without problems", list)
		}
	})
}

func fieldsOf(t *testing.T, conditions []metav1.Condition) []any {
	var all []any
	for _, c := range conditions {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&c)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fields)
	}
	return all
}
