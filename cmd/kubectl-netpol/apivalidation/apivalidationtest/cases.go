// Package apivalidationtest provides policies that API servers accept or refuse, for tests
// of the validation here and of real servers.
package apivalidationtest

import (
	"embed"
	"encoding/json"
	"fmt"
	"slices"

	unstructuredjson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

//go:embed cases
var files embed.FS

// Case is a policy and the faults that servers find in it.
type Case struct {
	Name   string
	Object map[string]any
	// Refused are the sorted paths of the fields that every server refuses. "" is the object
	// as a whole.
	Refused []string
	// Newer are the paths of the fields that servers refuse only since Kubernetes 1.36.
	Newer []string
	// Undecodable is set if a server cannot decode the object and therefore names no field.
	Undecodable bool
}

// Cases returns the cases of a kind of policy.
func Cases(kind *compile.Kind) ([]Case, error) {
	data, err := files.ReadFile("cases/" + kind.Name + ".yaml")
	if err != nil {
		return nil, err
	}
	data, err = yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	var written []struct {
		Name           string          `json:"name"`
		Metadata, Spec json.RawMessage `json:",omitempty"`
		Repeat         map[string]int  `json:"repeat"`
		Refused, Newer []string        `json:",omitempty"`
		Undecodable    bool            `json:"undecodable"`
	}
	if err := json.Unmarshal(data, &written); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	var cases []Case
	for _, w := range written {
		o := map[string]any{"apiVersion": kind.Resource.GroupVersion().String(), "kind": kind.Name, "metadata": map[string]any{"name": "case"}}
		for name, value := range map[string]json.RawMessage{"metadata": w.Metadata, "spec": w.Spec} {
			if value == nil {
				continue
			}
			var v any
			if err := unstructuredjson.Unmarshal(value, &v); err != nil {
				return nil, fmt.Errorf("%s %s: %w", kind, w.Name, err)
			}
			o[name] = v
		}
		for list, times := range w.Repeat {
			spec := o["spec"].(map[string]any)
			spec[list] = slices.Repeat(spec[list].([]any)[:1], times)
		}
		slices.Sort(w.Refused)
		cases = append(cases, Case{w.Name, o, w.Refused, w.Newer, w.Undecodable})
	}
	return cases, nil
}
