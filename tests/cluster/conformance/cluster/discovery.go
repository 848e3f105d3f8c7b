package cluster

import (
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kind is a kind of objects that the server has.
type kind struct {
	schema.GroupVersionResource
	name       string
	namespaced bool
}

// The kinds.
var (
	namespaces   = kind{v1("namespaces"), "Namespace", false}
	nodes        = kind{v1("nodes"), "Node", false}
	pods         = kind{v1("pods"), "Pod", true}
	definitions  = kind{schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, "CustomResourceDefinition", false}
	statefulSets = kind{schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}, "StatefulSet", true}

	kinds = []kind{
		namespaces, nodes, pods, statefulSets, definitions,
		{schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}, "NetworkPolicy", true},
		{admin("v1alpha1", "adminnetworkpolicies"), "AdminNetworkPolicy", false},
		{admin("v1alpha1", "baselineadminnetworkpolicies"), "BaselineAdminNetworkPolicy", false},
		{admin("v1alpha2", "clusternetworkpolicies"), "ClusterNetworkPolicy", false},
		{admin("v1beta1", "clusternetworkpolicies"), "ClusterNetworkPolicy", false},
	}
)

func v1(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func admin(version, resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "policy.networking.k8s.io", Version: version, Resource: resource}
}

// kindOf returns the kind that the path of a request is about.
func kindOf(r *http.Request) (kind, bool) {
	asked := schema.GroupVersionResource{Group: r.PathValue("group"), Version: r.PathValue("version"), Resource: r.PathValue("resource")}
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.GroupVersionResource == asked })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// serveVersions serves the versions of the group without a name.
func serveVersions(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}})
}

// serveGroups serves the groups and their versions. The version that comes first
// is the preferred one.
func serveGroups(w http.ResponseWriter, _ *http.Request) {
	groups := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, k := range kinds {
		if k.Group == "" {
			continue
		}
		version := metav1.GroupVersionForDiscovery{GroupVersion: k.GroupVersion().String(), Version: k.Version}
		i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == k.Group })
		if i < 0 {
			i = len(groups.Groups)
			groups.Groups = append(groups.Groups, metav1.APIGroup{Name: k.Group, PreferredVersion: version})
		}
		if !slices.Contains(groups.Groups[i].Versions, version) {
			groups.Groups[i].Versions = append(groups.Groups[i].Versions, version)
		}
	}
	write(w, http.StatusOK, groups)
}

// serveResources serves the resources of one version of a group.
func serveResources(w http.ResponseWriter, r *http.Request) {
	asked := schema.GroupVersion{Group: r.PathValue("group"), Version: r.PathValue("version")}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: asked.String()}
	for _, k := range kinds {
		if k.GroupVersion() == asked {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: k.Resource, Kind: k.name, Namespaced: k.namespaced,
				Verbs: metav1.Verbs{"get", "list", "create", "update", "patch", "delete"},
			})
		}
	}
	if len(list.APIResources) == 0 {
		http.NotFound(w, r)
		return
	}
	write(w, http.StatusOK, list)
}
