package statustest

import (
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
)

func (o *object) clone() *object {
	c := &object{fields: runtime.DeepCopyJSON(o.fields), owners: map[owner]sets.Set[string]{}}
	for who, what := range o.owners {
		c.owners[who] = what.Clone()
	}
	return c
}

// own makes who the only owner of item.
func (o *object) own(who owner, item string) {
	for other, items := range o.owners {
		if other != who {
			items.Delete(item)
		}
	}
	if o.owners[who] == nil {
		o.owners[who] = sets.New[string]()
	}
	o.owners[who].Insert(item)
}

// render returns the object as clients see it, with its managers.
func (o *object) render() map[string]any {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.fields)}
	var managed []metav1.ManagedFieldsEntry
	for who, items := range o.owners {
		if items.Len() > 0 {
			managed = append(managed, metav1.ManagedFieldsEntry{
				Manager: who.manager, Subresource: who.subresource, Operation: metav1.ManagedFieldsOperationApply,
				FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte("{}")},
			})
		}
	}
	slices.SortFunc(managed, func(a, b metav1.ManagedFieldsEntry) int {
		return strings.Compare(a.Manager+a.Subresource, b.Manager+b.Subresource)
	})
	u.SetManagedFields(managed)
	return u.Object
}

// items returns the parts of an object that can be owned: annotations by key, or
// conditions by type.
func items(fields map[string]any, subresource string) map[string]any {
	all := map[string]any{}
	if subresource == "" {
		annotations, _, _ := unstructured.NestedStringMap(fields, "metadata", "annotations")
		for key, value := range annotations {
			all[key] = value
		}
		return all
	}
	conditions, _, _ := unstructured.NestedSlice(fields, "status", "conditions")
	for _, c := range conditions {
		all[c.(map[string]any)["type"].(string)] = c
	}
	return all
}

func setItems(fields map[string]any, subresource string, all map[string]any) {
	keys := slices.Sorted(maps.Keys(all))
	if subresource == "" {
		annotations := map[string]any{}
		for _, key := range keys {
			annotations[key] = all[key]
		}
		_ = unstructured.SetNestedMap(fields, annotations, "metadata", "annotations")
		return
	}
	var conditions []any
	for _, key := range keys {
		conditions = append(conditions, all[key])
	}
	_ = unstructured.SetNestedSlice(fields, conditions, "status", "conditions")
}

// apply merges what who applies into o. What who owned alone and does not apply
// any more goes. With force, what others own of it becomes who's.
func (o *object) apply(who owner, applied map[string]any, force bool) *metav1.Status {
	all := items(o.fields, who.subresource)
	for item, value := range applied {
		for other, owned := range o.owners {
			if other != who && owned.Has(item) && !reflect.DeepEqual(all[item], value) && !force {
				return failure(http.StatusConflict, metav1.StatusReasonConflict, "conflict with "+other.manager+" over "+item)
			}
		}
	}
	for item := range o.owners[who] {
		if _, ok := applied[item]; !ok {
			o.owners[who].Delete(item)
			delete(all, item)
		}
	}
	for item, value := range applied {
		all[item] = value
		o.own(who, item)
	}
	setItems(o.fields, who.subresource, all)
	return nil
}

// patch answers a patch of a policy with the object, or with a failure.
func (s *Server) patch(r Request, body []byte, mergePatch, force bool) (map[string]any, *metav1.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	applied := &unstructured.Unstructured{}
	if err := json.Unmarshal(body, &applied.Object); err != nil {
		return nil, failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
	}
	resource, subresource, _ := strings.Cut(r.Resource, "/")
	o := s.objects[resource][r.Namespace+"/"+r.Name]
	if o == nil && (mergePatch || subresource != "") {
		return nil, notFound(r)
	}
	if status := precondition(o, applied); status != nil {
		return nil, status
	}
	if o == nil { // a server creates what is applied and is not there
		o = &object{fields: map[string]any{"metadata": map[string]any{"namespace": r.Namespace, "name": r.Name}}}
	}
	next := o.clone()
	switch {
	case mergePatch:
		next.merge(applied)
	case s.personality.Status == Dropped && r.Resource == "networkpolicies/status" && len(items(applied.Object, subresource)) > 0:
		// answered, and not stored
	default:
		if status := next.apply(owner{r.Manager, subresource}, items(applied.Object, subresource), force); status != nil {
			return nil, status
		}
	}
	if r.DryRun || reflect.DeepEqual(o.render(), next.render()) {
		return next.render(), nil
	}
	s.store(resource, "MODIFIED", next)
	return next.render(), nil
}

// merge takes away the annotations that are null in a merge patch.
func (o *object) merge(patch *unstructured.Unstructured) {
	all := items(o.fields, "")
	annotations, _, _ := unstructured.NestedMap(patch.Object, "metadata", "annotations")
	for key, value := range annotations {
		if value != nil {
			continue
		}
		delete(all, key)
		for _, owned := range o.owners {
			owned.Delete(key)
		}
	}
	setItems(o.fields, "", all)
}

// precondition holds the applied object's UID and version against o, which may
// be nil.
func precondition(o *object, applied *unstructured.Unstructured) *metav1.Status {
	is := &unstructured.Unstructured{}
	if o != nil {
		is.Object = o.fields
	}
	if uid := applied.GetUID(); uid != "" && uid != is.GetUID() {
		return failure(http.StatusConflict, metav1.StatusReasonConflict, "uid mismatch")
	}
	if version := applied.GetResourceVersion(); version != "" && version != is.GetResourceVersion() {
		return failure(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
	}
	return nil
}
