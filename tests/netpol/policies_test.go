package netpol

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestEveryKindOfPolicy finds the kinds of policy by reflection over State, so that no
// method can forget a new kind.
func TestEveryKindOfPolicy(t *testing.T) {
	names := map[string]bool{}
	for field := range kindsOfPolicy() {
		t.Run(field.Name, func(t *testing.T) {
			typ := field.Type.Elem().Elem()
			create := func() Policy {
				p := reflect.New(typ).Interface().(Policy)
				p.SetName("default")
				if u, ok := p.(*unstructured.Unstructured); ok {
					u.SetKind("ClusterNetworkPolicy")
				}
				return p
			}
			s := &State{}
			list := func(s *State) reflect.Value { return reflect.ValueOf(s).Elem().FieldByIndex(field.Index) }
			p, next := create(), create()
			s.Apply(p)
			if all := s.AllPolicies(); len(all) != 1 || all[0] != p {
				t.Errorf("AllPolicies: got %d policies", len(all))
			}
			proposed := field.Name == "Proposed" // of a kind that another field has, too
			if name := PolicyName(p); names[name] != proposed {
				t.Errorf("PolicyName: two kinds have the name %s", name)
			} else {
				names[name] = true
			}
			c := s.Clone()
			c.Apply(next)
			if list(c).Len() != 1 || list(c).Index(0).Interface() != next || list(s).Index(0).Interface() != p {
				t.Error("Clone and Apply: the policy must be replaced only in the clone")
			}
			s.Withdraw(PolicyName(p))
			c.withoutPolicies()
			if list(s).Len()+list(c).Len() > 0 {
				t.Errorf("after Withdraw there are %d policies, after withoutPolicies %d", list(s).Len(), list(c).Len())
			}
			s.Apply(p)
			if namespaced := field.Name == "Policies"; len(s.kinds()) > 0 == namespaced {
				t.Errorf("kinds: a backend needs %v", s.kinds())
			}
			if proposed {
				return // files have the fields of releases only
			}
			read := &State{}
			group := "policy.networking.k8s.io"
			if field.Name == "Policies" {
				group = "networking.k8s.io"
			}

			document := fmt.Sprintf("apiVersion: %s/%s\nkind: %s\nmetadata: {name: default}\n", group, path.Base(typ.PkgPath()), typ.Name())
			if err := read.readObject([]byte(document)); err != nil || list(read).Len() != 1 {
				t.Errorf("readObject: got %d policies, %v", list(read).Len(), err)
			}
		})
	}
	if len(names) < 4 {
		t.Errorf("only %d kinds of policy were found", len(names))
	}
}

// kindsOfPolicy yields the fields of State that are lists of policies.
func kindsOfPolicy() func(yield func(reflect.StructField) bool) {
	notPolicies := []reflect.Type{reflect.TypeFor[*corev1.Namespace](), reflect.TypeFor[*corev1.Pod]()}
	return func(yield func(reflect.StructField) bool) {
		for _, field := range reflect.VisibleFields(reflect.TypeFor[State]()) {
			if field.Type.Kind() != reflect.Slice || slices.Contains(notPolicies, field.Type.Elem()) {
				continue
			}
			if field.Type.Elem().Implements(reflect.TypeFor[Policy]()) && !yield(field) {
				return
			}
		}
	}
}
