package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// What is supported. docs/install/versions.md has the same, and a test compares them with what is
// tested.
const (
	oldestKubernetes = "1.27"
	newestKubernetes = "1.37"
	// newestDefinitions is the release of network-policy-api whose fields are known.
	newestDefinitions = "v0.3.0"
	// versionSkew is by how many minor versions agents, status writer and plugin may differ.
	versionSkew = 1
)

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// bundleVersion is the annotation of a definition with its release.
const bundleVersion = "policy.networking.k8s.io/bundle-version"

// checkDefinitions finds definitions of policies that this version does not know, and policies
// that agents do not read.
func (x *examination) checkDefinitions(ctx context.Context) {
	x.Definitions = map[string]string{}
	for _, kind := range compile.AdminKinds() {
		name := kind.Resource.GroupResource().String()
		definition, err := x.cluster.objects.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			x.cannotSay("definition of "+kind.Name, err)
			continue
		}
		release := definition.GetAnnotations()[bundleVersion]
		x.Definitions[kind.Name] = release
		served := servedVersions(definition)
		if known := slices.IndexFunc(served, func(v string) bool { return kind.Reads(schema.GroupVersion{Group: kind.Resource.Group, Version: v}) }); known < 0 {
			x.find("definition "+name, fmt.Sprintf("agents read none of its versions (%s)", strings.Join(served, ", ")), "install that of network-policy-api "+newestDefinitions)
			continue
		}
		if newer(release, newestDefinitions) {
			x.find("definition "+name, fmt.Sprintf("it is of release %s, and %s is the newest that is known", release, newestDefinitions), "upgrade the agents before policies use new fields, which fail closed")
		}
		x.checkRead(ctx, kind)
	}
}

func servedVersions(definition *unstructured.Unstructured) (served []string) {
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, v := range versions {
		if fields, ok := v.(map[string]any); ok && fields["served"] == true {
			name, _ := fields["name"].(string)
			served = append(served, name)
		}
	}
	return served
}

// checkRead finds policies of a kind that agents do not read.
func (x *examination) checkRead(ctx context.Context, kind *compile.Kind) {
	var without []string
	for i := range x.agents {
		if !readsAdminPolicies(x.agents[i].Spec.Containers[0].Args) {
			without = append(without, x.agents[i].Spec.NodeName)
		}
	}
	if len(without) == 0 {
		return
	}
	for _, r := range kind.Resources() { // the server may serve an older version only
		list, err := x.cluster.objects.Resource(r).List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			x.cannotSay(kind.Name+"s", err)
		} else if len(list.Items) > 0 {
			x.find("nodes "+shorten(without), "their agents do not read the "+kind.Name+"s that there are", "run them with --admin-policies, as install-anp.yaml does")
		}
		return
	}
}

func readsAdminPolicies(args []string) bool {
	reads := false
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--admin-policies"); ok {
			reads = value == "" || value == "=true"
		}
	}
	return reads
}

// checkVersions compares the versions of the programs, and that of the API server with those that
// are supported.
func (x *examination) checkVersions() {
	if info, err := x.cluster.client.Discovery().ServerVersion(); err != nil {
		x.cannotSay("version of the API server", err)
	} else {
		x.Kubernetes = info.GitVersion
		if newer(oldestKubernetes, minorOf(x.Kubernetes)) || newer(minorOf(x.Kubernetes), newestKubernetes) {
			x.find("API server", fmt.Sprintf("its version %s is not among those that are supported, %s to %s", x.Kubernetes, oldestKubernetes, newestKubernetes), "see docs/install/versions.md")
		}
	}
	nodes := map[string][]string{}
	for _, a := range x.Agents {
		if a.Version != "" && !slices.Contains(nodes[a.Version], a.Node) {
			nodes[a.Version] = append(nodes[a.Version], a.Node)
		}
	}
	if versions := sortedKeys(nodes); len(versions) > 1 {
		var each []string
		for _, v := range versions {
			each = append(each, fmt.Sprintf("%s on %s", v, shorten(nodes[v])))
		}
		x.find("agents", "they have different versions: "+strings.Join(each, "; "), "finish the rollout of the DaemonSet")
	}
	for _, v := range sortedKeys(nodes) {
		x.checkSkew("plugin", x.Plugin, "agents", v)
		x.checkSkew("status writer", x.Writer, "agents", v)
	}
}

// checkSkew finds versions that are too far apart.
func (x *examination) checkSkew(a, versionA, b, versionB string) {
	one, errA := version.ParseGeneric(versionA)
	other, errB := version.ParseGeneric(versionB)
	if errA != nil || errB != nil {
		return // built from no release
	}
	if apart := int(one.Minor()) - int(other.Minor()); one.Major() != other.Major() || max(apart, -apart) > versionSkew {
		x.find(a, fmt.Sprintf("its version %s is more than %d minor version from that of the %s, %s", versionA, versionSkew, b, versionB), "use versions of one release")
	}
}

// newer reports whether version a is newer than b. One that is no version is not.
func newer(a, b string) bool {
	one, errA := version.ParseGeneric(a)
	other, errB := version.ParseGeneric(b)
	return errA == nil && errB == nil && other.LessThan(one)
}

// minorOf returns a version without its patch number.
func minorOf(text string) string {
	v, err := version.ParseGeneric(text)
	if err != nil {
		return text
	}
	return fmt.Sprintf("%d.%d", v.Major(), v.Minor())
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
