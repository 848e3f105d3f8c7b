package clusterfiles

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// addresses lists the addresses of all pods, ordered by pod name.
func addresses(o *Objects) string {
	var s []string
	for _, p := range o.Pods {
		for _, a := range compile.Addresses(p) {
			s = append(s, a.String())
		}
	}
	return strings.Join(s, " ")
}

func TestAssumedAddresses(t *testing.T) {
	pod := func(name, rest string) string {
		return "---\napiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\n" + rest
	}
	const service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: "
	for name, tc := range map[string]struct{ text, want string }{
		"IPv4 where nothing says otherwise": {web + pod("a", ""), "0.0.0.1 0.0.0.2"},
		"that of a pod stays":               {web + pod("a", "status: {podIP: 10.0.0.1}\n"), "10.0.0.1 0.0.0.1"},
		"IPv6 like the pods":                {web + pod("a", "status: {podIPs: [{ip: 'fd00::1'}]}\n"), "fd00::1 100::1"},
		"both like the pods":                {web + pod("a", "status: {podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}\n"), "10.0.0.1 fd00::1 0.0.0.1 100::1"},
		"both like the ranges of a node":    {web + "---\napiVersion: v1\nkind: Node\nmetadata: {name: n}\nspec: {podCIDRs: [10.0.0.0/24, 'fd00::/64']}\n", "0.0.0.1 100::1"},
		"IPv6 like a Service":               {web + service + "{clusterIP: 'fd00::1'}\n", "100::1"},
		"not like a headless Service":       {web + service + "{clusterIP: None}\n", "0.0.0.1"},
		"a pod that has ended has none":     {web + pod("a", "status: {phase: Failed}\n"), "0.0.0.1"},
		"a host-network pod has the node's": {pod("a", "spec: {hostNetwork: true}\nstatus: {hostIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}\n"), "10.0.0.1 fd00::1"},
		"a host-network pod of nowhere":     {pod("a", "spec: {hostNetwork: true}\n"), "0.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := addresses(read(t, tc.text)); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

func TestPlaceholdersOfOtherFilesAreNotTaken(t *testing.T) {
	o, err := Read([]string{Stdin}, strings.NewReader(web), Options{Placeholders: 258})
	if err != nil || addresses(o) != "0.0.1.3" {
		t.Errorf("got %v %v", o, err)
	}
}

func TestNodesAndNamespacesThatAreOnlyNamed(t *testing.T) {
	o := read(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: x}\nspec: {nodeName: n1}\nstatus: {podIP: 10.1.0.1, hostIP: 10.0.0.1, hostIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}\n"+
		"---\napiVersion: v1\nkind: Pod\nmetadata: {name: b, namespace: x}\nspec: {nodeName: n1}\nstatus: {podIP: 10.1.0.2, hostIP: 10.0.0.1}\n"+
		"---\napiVersion: v1\nkind: Pod\nmetadata: {name: c, namespace: y}\nspec: {nodeName: n2}\nstatus: {podIP: 10.1.0.3, hostIP: 10.0.0.2}\n"+
		"---\napiVersion: v1\nkind: Node\nmetadata: {name: n2}\n"+
		"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: y}\n"+
		"---\n"+strings.Replace(denyAll, "name: deny", "name: deny\n  namespace: z", 1))
	if len(o.Nodes) != 2 || len(o.Nodes[0].Status.Addresses) != 2 || len(o.Nodes[1].Status.Addresses) != 0 {
		t.Errorf("got %+v", o.Nodes)
	}
	want := []string{
		"Assumed: namespaces without an object have only the label kubernetes.io/metadata.name: x",
		"Assumed: nodes without an object have only the addresses that their pods name (status.hostIPs): n1",
	}
	if got := o.Notes(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got := o.AssumedNamespaces; !slices.Equal(got, []string{"x", "z"}) {
		t.Errorf("assumed %q", got)
	}
}

func TestNotesOfAnApplication(t *testing.T) {
	folder(t, map[string]string{
		"app/web.yaml":           web + "---\n" + webOf("apps/v1", "StatefulSet"),
		"app/values.yml":         "replicas: 3\nimage: {tag: v1}\n",
		"app/package.json":       "{\"name\": \"web\", \"version\": \"1.0.0\"}\n",
		"app/README.md":          "kind: NetworkPolicie\n",
		"app/run.sh":             "#!/bin/sh\nexit 1\n",
		"app/.hidden/a.yaml":     "kind: NetworkPolicie\n",
		"app/.b.yaml":            "kind: NetworkPolicie\n",
		"app/empty.yaml":         "",
		"app/comment.yaml":       "# nothing\n",
		"app/chart/Chart.yaml":   "apiVersion: v2\nname: web\n",
		"app/chart/t/a.yaml":     "a: {{ .Values.a }}\n",
		"app/config/config.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
	})
	o, err := Read([]string{"app"}, nil, Options{Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"Passed over: 1 ConfigMap, 2 files without apiVersion and kind, 1 Helm chart (--helm renders one)",
		"Assumed: one pod for each of 2 workloads, as its template has it",
		"Assumed: namespaces without an object have only the label kubernetes.io/metadata.name: shop",
	}
	if got := o.Notes(); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}
