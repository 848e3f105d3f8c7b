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
	for manager, items := range o.owners {
		c.owners[manager] = items.Clone()
	}
	return c
}

// own makes manager the only owner of item.
func (o *object) own(manager owner, item string) {
	for other, items := range o.owners {
		if other != manager {
			items.Delete(item)
		}
	}
	if o.owners[manager] == nil {
		o.owners[manager] = sets.New[string]()
	}
	o.owners[manager].Insert(item)
}

// render returns the object as clients see it, with its managers.
func (o *object) render() map[string]any {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.fields)}
	var managed []metav1.ManagedFieldsEntry
	for by, items := range o.owners {
		if items.Len() > 0 {
			managed = append(managed, metav1.ManagedFieldsEntry{
				Manager: by.manager, Subresource: by.subresource, Operation: metav1.ManagedFieldsOperationApply,
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

// items returns the parts of an object that have owners: annotations by key, or
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

// apply merges the applied items of a manager into o. Items that only it owned and
// no longer applies are removed. With force, it takes over items of other managers.
func (o *object) apply(manager owner, applied map[string]any, force bool) *metav1.Status {
	all := items(o.fields, manager.subresource)
	for item, value := range applied {
		for other, owned := range o.owners {
			if other != manager && owned.Has(item) && !reflect.DeepEqual(all[item], value) && !force {
				return failure(http.StatusConflict, metav1.StatusReasonConflict, "conflict with "+other.manager+" over "+item)
			}
		}
	}
	for item := range o.owners[manager] {
		if _, ok := applied[item]; !ok {
			o.owners[manager].Delete(item)
			delete(all, item)
		}
	}
	for item, value := range applied {
		all[item] = value
		o.own(manager, item)
	}
	setItems(o.fields, manager.subresource, all)
	return nil
}

// patch patches a policy and returns the object, or an error.
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
	if o == nil { // an apply creates the object
		o = &object{fields: map[string]any{"metadata": map[string]any{"namespace": r.Namespace, "name": r.Name}}}
	}
	next := o.clone()
	switch {
	case mergePatch:
		next.merge(applied)
	case s.behavior.Status == Dropped && r.Resource == "networkpolicies/status" && len(items(applied.Object, subresource)) > 0:
		// answered, but not stored
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

// merge removes the annotations that are null in a merge patch.
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

// precondition compares the UID and the version of the applied object with those of
// o, which may be nil.
func precondition(o *object, applied *unstructured.Unstructured) *metav1.Status {
	stored := &unstructured.Unstructured{}
	if o != nil {
		stored.Object = o.fields
	}
	if uid := applied.GetUID(); uid != "" && uid != stored.GetUID() {
		return failure(http.StatusConflict, metav1.StatusReasonConflict, "uid mismatch")
	}
	if version := applied.GetResourceVersion(); version != "" && version != stored.GetResourceVersion() {
		return failure(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
	}
	return nil
}
