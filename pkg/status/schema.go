package status

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// schemaNode is the part of an OpenAPI schema that says which fields there are.
type schemaNode struct {
	Properties map[string]*schemaNode `json:"properties"`
	Items      *schemaNode            `json:"items"`
	Kinds      []struct {
		Kind string `json:"kind"`
	} `json:"x-kubernetes-group-version-kind"`
}

// lackingFields returns those of fields that the server does not have in a kind. Fields are paths such as
// "spec.ingress.from.networks", without indices of lists. A server drops or refuses what it lacks.
func lackingFields(ctx context.Context, client rest.Interface, kind schema.GroupVersionKind, fields []string) ([]string, error) {
	text, err := client.Get().AbsPath("/openapi/v3/apis", kind.Group, kind.Version).Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("read the schema of %s: %w", kind.GroupVersion(), err)
	}
	var document struct {
		Components struct {
			Schemas map[string]*schemaNode `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, fmt.Errorf("decode the schema of %s: %w", kind.GroupVersion(), err)
	}
	for _, s := range document.Components.Schemas {
		for _, described := range s.Kinds {
			if described.Kind == kind.Kind {
				return slices.DeleteFunc(slices.Clone(fields), s.has), nil
			}
		}
	}
	return nil, fmt.Errorf("the schema of %s has no %s", kind.GroupVersion(), kind.Kind)
}

// has reports whether the schema has a field.
func (n *schemaNode) has(field string) bool {
	for name := range strings.SplitSeq(field, ".") {
		for n != nil && n.Items != nil {
			n = n.Items
		}
		if n == nil {
			return false
		}
		n = n.Properties[name]
	}
	return n != nil
}
