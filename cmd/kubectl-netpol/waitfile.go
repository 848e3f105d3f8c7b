package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// differs returns the field in which the applied policy is not the one of the file, nil if there is
// none.
func (p awaited) differs(applied *unstructured.Unstructured) error {
	if p.file == nil {
		return nil
	}
	fields := maps.Clone(applied.Object)
	delete(fields, "status") // early versions of NetworkPolicy had one
	o := p.kind.New()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(fields, o, true); err != nil {
		return fmt.Errorf("the applied one cannot be compared with the file: %w", err)
	}
	for name, value := range compile.StripAnnotations(p.file.GetAnnotations()) {
		if got := o.GetAnnotations()[name]; got != value {
			return errDiffers("metadata.annotations["+name+"]", value, got)
		}
	}
	ours, err := specOf(p.file)
	if err != nil {
		return err
	}
	theirs, err := specOf(o)
	if err != nil {
		return err
	}
	return difference("spec", p.kind.IsAdmin(), ours, theirs)
}

// specOf returns the spec of a policy as JSON has it.
func specOf(o compile.Object) (any, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	return fields["spec"], err
}

func errDiffers(path string, file, applied any) error {
	return fmt.Errorf("%s: the file has %s, and %s is applied: apply the file first", path, valueText(file), valueText(applied))
}

func valueText(v any) string {
	if v == nil || v == "" {
		return "nothing"
	}
	text, _ := json.Marshal(v) // a part of an API object
	return printable.Text(string(text))
}

// difference returns the first field in which two parts of specs differ. Lists have no order, except
// those of an administrator's rules.
func difference(path string, admin bool, file, applied any) error {
	switch file := file.(type) {
	case map[string]any:
		if applied, ok := applied.(map[string]any); ok {
			return differentField(path, admin, file, applied)
		}
	case []any:
		if applied, ok := applied.([]any); ok {
			return differentItem(path, admin, file, applied)
		}
	}
	if reflect.DeepEqual(file, applied) || isEmpty(file) && isEmpty(applied) {
		return nil
	}
	return errDiffers(path, file, applied)
}

// isEmpty reports whether v is no list or one without items, which mean the same.
func isEmpty(v any) bool {
	list, isList := v.([]any)
	return v == nil || isList && len(list) == 0
}

func differentField(path string, admin bool, file, applied map[string]any) error {
	all := maps.Clone(file)
	maps.Copy(all, applied)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		a, b := file[key], applied[key]
		if key == "protocol" { // of v1alpha1, readers of files do not set the default
			a, b = orTCP(a), orTCP(b)
		}
		if err := difference(path+"."+key, admin, a, b); err != nil {
			return err
		}
	}
	return nil
}

func orTCP(protocol any) any {
	if protocol == nil || protocol == "" {
		return string(corev1.ProtocolTCP)
	}
	return protocol
}

func differentItem(path string, admin bool, file, applied []any) error {
	ordered := admin && (path == "spec.ingress" || path == "spec.egress")
	has := func(list []any, i int, item any) bool {
		same := func(other any) bool { return difference("", admin, item, other) == nil }
		if ordered {
			return i < len(list) && same(list[i])
		}
		return slices.ContainsFunc(list, same)
	}
	for i := range max(len(file), len(applied)) {
		at := fmt.Sprintf("%s[%d]", path, i)
		lost := i < len(file) && !has(applied, i, file[i])
		more := i < len(applied) && !has(file, i, applied[i])
		switch {
		case lost && more:
			return difference(at, admin, file[i], applied[i])
		case lost:
			return errDiffers(at, file[i], nil)
		case more:
			return errDiffers(at, nil, applied[i])
		}
	}
	return nil
}
