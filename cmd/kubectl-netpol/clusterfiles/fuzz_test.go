package clusterfiles

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// FuzzRead looks for a file that crashes the reader, that is accepted but cannot be
// evaluated, or that means something else when it is given twice.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		web, denyAll, cron, web + "---\n" + denyAll, webOf("v1", "ReplicationController"), webOf("batch/v1", "Job"),
		"apiVersion: v1\nkind: List\nitems:\n- " + indent(web) + "- " + indent(denyAll),
		"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\nitems: [{metadata: {name: a}, spec: {podSelector: {}}}]\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: x}\nspec: {nodeName: n, hostNetwork: true}\nstatus: {hostIP: 10.0.0.1}\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nstatus: {podIPs: [{ip: 'fd00::1'}]}\n---\n" + web,
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIPs: [10.0.0.1, 'fd00::1'], ports: [{port: 80}]}\n---\n" + web,
		denyAll + "  ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [198.18.0.0/15, 240.0.0.0/5]}}]}]\n---\n" + web,
		"apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata: {name: a}\nspec: {tier: Admin, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: ['::/0']}]}]}\n---\n" + web,
		"apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: a-, ownerReferences: [{kind: CronJob, name: b, controller: true}]}\nspec: {template: {}}\n",
		"networking.k8s.io/v1", "- a\n", "# only a comment\n", "a: {{ .Values.a }}\n", "kind: List\napiVersion: v1\nitems: [[]]\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if o, err := Read([]string{Stdin}, strings.NewReader(string(data)), Options{Namespace: "shop"}); err == nil {
			checkObjects(t, o)
		}
		o, err := Read([]string{Stdin}, strings.NewReader(string(data)), Options{Namespace: "shop", Strict: true})
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if strings.HasPrefix(line, "no object to read: ") || strings.HasPrefix(line, Stdin) {
					return
				}
			}
			t.Fatalf("an error without its file: %v", err)
		}
		checkObjects(t, o)
		r := newReader("shop", 0)
		for _, name := range []string{"a", "b"} {
			if errs := r.file(file{name: name, data: data, named: true}); len(errs) > 0 {
				t.Fatalf("accepted once, refused twice: %v", errs)
			}
		}

		if twice := r.cluster(); twice.names() != o.names() {
			t.Fatalf("read once: %s, read twice: %s", o.names(), twice.names())
		}
	})
}

// checkObjects checks the invariants that evaluation relies on.
func checkObjects(t *testing.T, o *Objects) {
	t.Helper()
	namespaces := map[string]bool{}
	for _, n := range o.Namespaces {
		namespaces[n.Name] = n.Labels["kubernetes.io/metadata.name"] == n.Name
	}
	nodes := map[string]bool{"": true}
	for _, n := range o.Nodes {
		nodes[n.Name] = true
	}
	names := map[string]bool{}
	for _, p := range o.Pods {
		name := p.Namespace + "/" + p.Name
		if names[name] || !namespaces[p.Namespace] || !nodes[p.Spec.NodeName] {
			t.Fatalf("pod %s: a duplicate, or its namespace or node is missing", name)
		}
		names[name] = true
		if len(compile.Addresses(p)) == 0 && !compile.Ended(p) && len(hostIPs(p)) == 0 {
			t.Fatalf("pod %s has no address", name)
		}
	}
	assumed := map[string]bool{}
	for _, p := range o.Pods {
		for _, a := range compile.Addresses(p) {
			if !slices.Contains(o.Unaddressed, p.Namespace+"/"+p.Name) {
				continue
			}
			if assumed[a.String()] || !workloads.IsPlaceholder(a) {
				t.Fatalf("address %v was assumed twice, or a pod may have it", a)
			}
			assumed[a.String()] = true
		}
	}
	for _, p := range o.Policies {
		at, ok := o.Position(compile.KindOf(p).Name, p.GetNamespace(), p.GetName(), "spec.ingress[0].ports[0].port")
		if !ok || at.Line < 1 {
			t.Fatalf("%s is at %v", p.GetName(), at)
		}
		o.Comments(compile.KindOf(p).Name, p.GetNamespace(), p.GetName())
	}
}
