package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	release "helm.sh/helm/v4/pkg/release/v1"
	"helm.sh/helm/v4/pkg/release/v1/util"
)

// hooks returns the hooks of the rendered chart as Helm runs them: by weight, then by kind.
func hooks(t *testing.T, v Values) []*release.Hook {
	t.Helper()
	rendered, err := Render(load(t), v, Version)
	if err != nil {
		t.Fatal(err)
	}
	delete(rendered, "NOTES.txt")
	found, _, err := util.SortManifests(rendered, nil, util.InstallOrder)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(found, func(a, b *release.Hook) int { return a.Weight - b.Weight })
	return found
}

// helm uninstall cleans the nodes once all else is deleted: rights first, then the pods of the
// nodes, then the Job that Helm waits for. All of it is deleted if the Job succeeds, and stays
// otherwise.
func TestUninstallHooks(t *testing.T) {
	var kinds []string
	for _, h := range hooks(t, nil) {
		kinds = append(kinds, h.Kind)
		if !slices.Equal(h.Events, []release.HookEvent{release.HookPostDelete}) {
			t.Errorf("%s runs at %v", h.Kind, h.Events)
		}
		if want := []release.HookDeletePolicy{release.HookBeforeHookCreation, release.HookSucceeded}; !slices.Equal(h.DeletePolicies, want) {
			t.Errorf("%s is deleted %v, want %v", h.Kind, h.DeletePolicies, want)
		}
	}
	want := []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DaemonSet", "Job"}
	if !slices.Equal(kinds, want) {
		t.Errorf("got %q, want %q", kinds, want)
	}
}

// The hooks do what uninstall.yaml does, with the values of the chart. They also wait: the
// DaemonSet's pods for the end of the agent of their node, and the Job for the DaemonSet.
func TestUninstallHooksEqualTheFile(t *testing.T) {
	file := objects(t, strings.TrimSpace(read(t, repository+"/uninstall.yaml")))
	rendered, err := Render(load(t), nil, Version)
	if err != nil {
		t.Fatal(err)
	}
	chart := objects(t, strings.TrimSpace(rendered[Uninstall]))
	const name = "netpol-uninstall"
	pod := func(all map[string]map[string]any, kind string) map[string]any {
		spec := all[kind+" kube-system/"+name]["spec"].(map[string]any)
		return spec["template"].(map[string]any)["spec"].(map[string]any)
	}

	nodes := pod(chart, "DaemonSet")
	affinity := nodes["affinity"]
	delete(nodes, "affinity")
	if diff := cmp.Diff(pod(file, "DaemonSet"), nodes); diff != "" {
		t.Errorf("the DaemonSet: %s", diff)
	}
	wantAffinity := map[string]any{"podAntiAffinity": map[string]any{"requiredDuringSchedulingIgnoredDuringExecution": []any{map[string]any{
		"topologyKey":   "kubernetes.io/hostname",
		"labelSelector": map[string]any{"matchLabels": map[string]any{"app.kubernetes.io/name": "netpol-agent"}},
	}}}}
	if diff := cmp.Diff(wantAffinity, affinity); diff != "" {
		t.Errorf("the DaemonSet's affinity: %s", diff)
	}
	container := func(pod map[string]any) map[string]any { return pod["containers"].([]any)[0].(map[string]any) }
	want, got := container(pod(file, "Job")), container(pod(chart, "Job"))
	want["args"] = append(want["args"].([]any), "--wait-for-daemonset="+name)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the Job: %s", diff)
	}
	if diff := cmp.Diff(file["ClusterRole /"+name]["rules"], chart["ClusterRole /"+name]["rules"]); diff != "" {
		t.Errorf("the ClusterRole: %s", diff)
	}
}

// What is cleaned is what the flags of the agents and the writer name.
func TestUninstallFlags(t *testing.T) {
	v := values(t, `{agent: {flags: {mark: "0x1800", snapshot-cache: null}}, statusWriter: {flags: {condition-prefix: example.com}}}`)
	text := render(t, load(t), v)
	_, text, _ = strings.Cut(text, "helm.sh/hook")
	for _, want := range []string{"- --mark=0x1800", "- --condition-prefix=example.com"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, "--snapshot-cache") {
		t.Error("saved state is removed that agents do not have")
	}
}
