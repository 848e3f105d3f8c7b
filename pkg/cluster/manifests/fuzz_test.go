package manifests

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// FuzzParse looks for files that crash the parser, that are accepted although an informer
// cannot hold the objects, or that change when they are written and read again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		namespaceX, podA, denyAll, namespaceX + "---\n" + podA + "---\n" + denyAll, adminPolicy, baselinePolicy, clusterPolicy,
		"apiVersion: v1\nkind: List\nitems:\n- " + indent(podA),
		`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"spec":{"podCIDRs":["10.0.0.0/24"]}}`,
		denyAll + "  ingress:\n  - ports:\n    - port: http\n    - {port: 0x50, endPort: 90}\n  - from: [&p {podSelector: {}}, *p]\n",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a, creationTimestamp: 2024-05-06T07:08:09Z, labels: {<<: {a: b}, 1: c}}\n",
		"a: &a [*a]\n", "{}\n", "---\n...\n", "? [a]\n: b\n", "%TAG ! x\n---\n!y z\n", "kind: *x\n", "a: !!binary x\n", "\xef\xbb\xbfa: b\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parse(data)
		if err != nil {
			if at, ok := err.(fault); !ok || at.Line < 0 || at.Line > len(data)+1 {
				t.Fatalf("fault %#v", err)
			}
			return
		}
		for _, m := range c.manifests {
			check(t, m)
		}
	})
}

func check(t *testing.T, m manifest) {
	t.Helper()
	if m.object.GetName() == "" || m.object.GetUID() == "" || (m.object.GetNamespace() != "") != m.kind.Namespaced {
		t.Fatalf("accepted %+v", m.object)
	}
	if p, ok := m.object.(*corev1.Pod); ok {
		for _, ip := range p.Status.PodIPs {
			netip.MustParseAddr(ip.IP)
		}
	}
	text, err := yaml.Marshal(m.object)
	if err != nil {
		t.Fatal(err)
	}
	again, err := parse(text)
	if err != nil || len(again.manifests) != 1 {
		t.Fatalf("%v in\n%s", err, text)
	}
	second, err := yaml.Marshal(again.manifests[0].object)
	if diff := cmp.Diff(string(text), string(second)); err != nil || diff != "" {
		t.Fatalf("%v, another text the second time (-first +second):\n%s", err, diff)
	}
}
