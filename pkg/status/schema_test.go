package status

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

const openAPI = `{"components": {"schemas": {
	"list": {"x-kubernetes-group-version-kind": [{"kind": "PolicyList"}]},
	"policy": {
		"x-kubernetes-group-version-kind": [{"group": "g", "version": "v1", "kind": "Policy"}],
		"properties": {"spec": {"properties": {
			"ingress": {"type": "array", "items": {"properties": {
				"from": {"type": "array", "items": {"properties": {"pods": {}}}}
			}}}
		}}}
	}
}}}`

func TestLacking(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/openapi/v3/apis/g/v1" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write([]byte(openAPI))
	}))
	defer server.Close()
	client, err := apiclient.New(&rest.Config{Host: server.URL}, nil, schema.GroupVersion{Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	kind := schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "Policy"}

	got, err := lackingFields(t.Context(), client, kind, []string{"spec.ingress.from.networks", "spec.ingress.from.pods", "spec.egress.to.pods"})

	if want := []string{"spec.ingress.from.networks", "spec.egress.to.pods"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, kind := range []schema.GroupVersionKind{{Group: "g", Version: "v1", Kind: "Other"}, {Group: "g", Version: "v2", Kind: "Policy"}} {
		if got, err := lackingFields(t.Context(), client, kind, []string{"spec"}); err == nil {
			t.Errorf("%v: got %q and no error", kind, got)
		}
	}
}
