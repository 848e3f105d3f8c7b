package statustest

import (
	"reflect"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Policies are the policies of one resource of a Server. The namespace of
// cluster-scoped policies is empty.
type Policies struct {
	server   *Server
	resource string
}

// Create stores a new policy, a pointer to the API's type, with generation 1. The
// manager "author" owns its annotations.
func (p Policies) Create(policy any) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(policy)
	if err != nil {
		panic(err) // not a type of the API
	}
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	u := &unstructured.Unstructured{Object: fields}
	u.SetAPIVersion(resources[p.resource].groupVersion)
	u.SetKind(resources[p.resource].kind)
	u.SetGeneration(1)
	u.SetUID(types.UID("uid-" + strconv.FormatInt(s.version, 10)))
	o := &object{fields: fields, owners: map[owner]sets.Set[string]{}}
	for key := range u.GetAnnotations() {
		o.own(owner{"author", ""}, key)
	}
	s.store(p.resource, "ADDED", o)
}

// Update changes a policy as its author does. A changed spec is a new generation.
func (p Policies) Update(namespace, name string, change func(*unstructured.Unstructured)) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[p.resource][namespace+"/"+name]
	next := o.clone()
	u := &unstructured.Unstructured{Object: next.fields}
	change(u)
	if !reflect.DeepEqual(o.fields["spec"], next.fields["spec"]) {
		u.SetGeneration(u.GetGeneration() + 1)
	}
	before, _, _ := unstructured.NestedStringMap(o.fields, "metadata", "annotations")
	for key, value := range u.GetAnnotations() {
		if before[key] != value {
			next.own(owner{"author", ""}, key)
		}
	}
	s.store(p.resource, "MODIFIED", next)
}

// Delete removes a policy.
func (p Policies) Delete(namespace, name string) {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	key := namespace + "/" + name
	s.store(p.resource, "DELETED", s.objects[p.resource][key].clone())
}

// Policy returns a policy with its managed fields, nil if there is none.
func (p Policies) Policy(namespace, name string) *unstructured.Unstructured {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[p.resource][namespace+"/"+name]
	if o == nil {
		return nil
	}
	return &unstructured.Unstructured{Object: o.render()}
}

// Len returns the number of policies.
func (p Policies) Len() int {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.objects[p.resource])
}
