package manifests

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

const (
	namespaceX = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: x\n  labels:\n    team: a\n"
	podA       = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  namespace: x\nspec:\n  nodeName: n\nstatus:\n  podIPs:\n  - ip: 10.0.0.1\n  - ip: fd00::1\n"
	nodeN      = "apiVersion: v1\nkind: Node\nmetadata:\n  name: n\nspec:\n  podCIDRs: [10.0.0.0/24]\n"
	denyAll    = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: deny\nspec:\n  podSelector: {}\n"

	adminPolicy = "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata:\n  name: admin\nspec:\n" +
		"  priority: 10\n  subject:\n    namespaces: {}\n" +
		"  egress:\n  - action: Pass\n    to:\n    - nodes: {}\n    ports:\n    - portRange: {protocol: TCP, start: 80, end: 90}\n"
	baselinePolicy = "apiVersion: policy.networking.k8s.io/v1alpha1\nkind: BaselineAdminNetworkPolicy\nmetadata:\n  name: default\nspec:\n" +
		"  subject:\n    pods: {namespaceSelector: {}, podSelector: {}}\n" +
		"  ingress:\n  - action: Deny\n    from:\n    - namespaces: {}\n"
	clusterPolicy = "apiVersion: policy.networking.k8s.io/v1beta1\nkind: ClusterNetworkPolicy\nmetadata:\n  name: cluster\nspec:\n" +
		"  tier: Admin\n  priority: 10\n  subject:\n    namespaces: {}\n" +
		"  egress:\n  - action: Accept\n    to:\n    - domainNames: [\"*.example.com\"]\n    protocols:\n    - tcp: {destinationPort: {number: 443}}\n"
)

// names returns the keys of what was parsed, in order.
func names(c content) string {
	var s []string
	for _, m := range c.manifests {
		s = append(s, m.key())
	}
	return strings.Join(s, ", ")
}

func TestParseFindsTheObjectsOfAFile(t *testing.T) {
	for name, tc := range map[string]struct{ in, want string }{
		"one document":      {podA, "Pod x/a"},
		"several documents": {namespaceX + "---\n" + podA + "---\n" + denyAll, "Namespace x, Pod x/a, NetworkPolicy default/deny"},
		"empty documents":   {"---\n---\n# nothing\n---\n" + podA + "---\n", "Pod x/a"},
		"only a comment":    {"# nothing\n", ""},
		"windows line ends": {strings.ReplaceAll(namespaceX, "\n", "\r\n"), "Namespace x"},
		"JSON":              {`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"spec":{"podCIDRs":["10.0.0.0/24"]}}`, "Node n"},
		"JSON with tabs":    {"{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Node\",\n\t\"metadata\": {\n\t\t\"name\": \"n\"\n\t}\n}\n", "Node n"},
		"a List":            {"apiVersion: v1\nkind: List\nmetadata: {}\nitems:\n- " + indent(namespaceX) + "- " + indent(podA), "Namespace x, Pod x/a"},
		"a List of a List":  {`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}]}]}`, "Node n"},
		"administrators' policies": {adminPolicy + "---\n" + baselinePolicy + "---\n" + clusterPolicy,
			"AdminNetworkPolicy admin, BaselineAdminNetworkPolicy default, ClusterNetworkPolicy cluster"},
		"other kinds":             {"apiVersion: v1\nkind: Service\nspec: 12\n---\napiVersion: projectcalico.org/v3\nkind: NetworkPolicy\n---\n" + namespaceX, "Namespace x"},
		"anchors":                 {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: &l\n    app: web\n  annotations: *l\n", "Pod default/a"},
		"the same name elsewhere": {podA + "---\n" + strings.Replace(podA, "namespace: x", "namespace: y", 1), "Pod x/a, Pod y/a"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parse([]byte(tc.in))
			if err != nil {
				t.Fatalf("%v\n%s", err, tc.in)
			}
			if got := names(c); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// indent makes a document the item of a list.
func indent(document string) string {
	return strings.ReplaceAll(strings.TrimSuffix(document, "\n"), "\n", "\n  ") + "\n"
}

func TestParseReportsTheLineOfAFault(t *testing.T) {
	const lines = 7 // of namespaceX and a separator
	policy := "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata:\n  name: p\nspec:\n  podSelector: {}\n  ingress:\n"
	for name, tc := range map[string]struct {
		in   string // the second document of a file
		line int    // in that document, from 1
		text string
	}{
		"a colon too much":             {"apiVersion: v1\nkind: Pod\n  x: y\n", 3, "mapping values are not allowed"},
		"an open bracket":              {"apiVersion: v1\nkind: Pod\nspec:\n  containers: [a, b\n", 4, "did not find expected ',' or ']'"},
		"an open bracket before a key": {"apiVersion: v1\nkind: Pod\nspec:\n  containers: [a, b\nstatus: {}\n", 5, "did not find expected ',' or ']'"},
		"a key of another depth":       {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n labels: {}\n", 5, "did not find expected key"},
		"no indicator of a list":       {"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - a\n  b\n", 6, "could not find expected ':'"},
		"a map that is not closed":     {"apiVersion: v1\nkind: Pod\nmetadata: {name: a\n", 3, "did not find expected ',' or '}'"},
		"an unknown tag":               {"apiVersion: v1\nkind: !x!y Pod\n", 2, "undefined tag handle"},
		"a bad escape":                 {"apiVersion: v1\nkind: \"a\n  b\n  \\q\"\n", 4, "unknown escape character"},
		"a directive":                  {"%YAML 9.9\n---\n", 1, "before directive"},
		"a value that is not base64":   {"apiVersion: v1\nkind: !!binary =\n", 2, "base64"},
		"a merge of a text":            {"apiVersion: v1\nkind: Pod\n<<: a\n", 3, "merge"},
		"a list as a key":              {"apiVersion: v1\n? [a]\n: b\n", 2, "key"},
		"an alias of itself":           {"apiVersion: v1\nspec: &a [*a]\n", 2, "itself"},
		"an open quote":                {"apiVersion: v1\nkind: \"Pod\nmetadata: {}\n", 2, "unexpected end of stream"},
		"a tab":                        {"apiVersion: v1\nkind: Pod\nmetadata:\n\tname: x\n", 4, "cannot start any token"},
		"a stray brace":                {"}\n", 1, "did not find expected node content"},
		"an unknown anchor":            {"apiVersion: v1\nkind: *pod\n", 2, "unknown anchor"},
		"a control character":          {"apiVersion: v1\nkind: \x01\n", 2, "control character U+0001"},
		"latin 1":                      {"apiVersion: v1\nkind: Pod\n# caf\xe9\n", 3, "byte 0xe9 is not UTF-8"},
		"a key twice":                  {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels: {}\n  name: b\n", 6, `mapping key "name" already defined`},
		"a list":                       {"- a\n- b\n", 1, "want"},
		"a text":                       {"hello\n", 1, "want"},
		"no kind":                      {"apiVersion: v1\nmetadata:\n  name: a\n", 1, "apiVersion or kind is missing"},
		"no apiVersion":                {"kind: Pod\n", 1, "apiVersion or kind is missing"},
		"kind a number":                {"apiVersion: v1\nkind: 12\n", 2, "kind: got number"},
		"apiVersion odd":               {"kind: Pod\napiVersion: a/b/c\n", 2, "unexpected GroupVersion string"},
		"an old version":               {"kind: NetworkPolicy\napiVersion: networking.k8s.io/v1beta1\n", 2, "only of v1: write it as networking.k8s.io/v1"},
		"an older version":             {strings.Replace(clusterPolicy, "v1beta1", "v1alpha1", 1), 1, "ClusterNetworkPolicy of version policy.networking.k8s.io/v1alpha1 is not read, only of v1beta1 or v1alpha2: write it as policy.networking.k8s.io/v1beta1"},
		"a newer version":              {strings.Replace(adminPolicy, "v1alpha1", "v1beta1", 1), 1, "only of v1alpha1"},
		"a version to come":            {strings.Replace(clusterPolicy, "v1beta1", "v1", 1), 1, "write it as policy.networking.k8s.io/v1beta1"},
		"two versions of one object": {clusterPolicy + "---\n" + strings.Replace(clusterPolicy, "v1beta1", "v1alpha2", 1), 17,
			"ClusterNetworkPolicy cluster of version v1alpha2 is already at line 8 as v1beta1, and is the same object: remove one of them"},
		"an unknown field":            {podA + "extra: 1\n", 12, `unknown field "extra"`},
		"an unknown field inside":     {strings.Replace(podA, "nodeName", "nodename", 1), 7, `unknown field "spec.nodename"`},
		"an unknown field with a dot": {podA + "a.b: 1\n", 12, `unknown field "a.b"`},
		"an unknown field in a list": {policy + "  - {}\n  - from:\n    - podSelector: {}\n    - podSelectr: {}\n", 11,
			`unknown field "spec.ingress[1].from[1].podSelectr"`},
		"an unknown field in an alias":              {policy + "  - &r\n    form: []\n  - *r\n", 9, `unknown field "spec.ingress[0].form"`},
		"an unknown field of an AdminNetworkPolicy": {adminPolicy + "  order: 1\n", 15, `unknown field "spec.order"`},
		"an unknown peer of a baseline policy":      {strings.Replace(baselinePolicy, "- namespaces", "- nodes", 1), 11, `unknown field "spec.ingress[0].from[0].nodes"`},
		"an unknown peer of a ClusterNetworkPolicy": {strings.Replace(clusterPolicy, "domainNames", "domains", 1), 13, `unknown field "spec.egress[0].to[0].domains"`},
		"a wrong type":                                 {policy + "  - ports:\n    - port: 80\n    - port: true\n", 10, "spec.ingress.ports.port: got bool"},
		"a number out of range":                        {policy + "  - ports:\n    - port: 80\n      endPort: 90\n    - port: 80\n      endPort: 9000000000\n", 12, "spec.ingress.ports.endPort: got number 9000000000, want int32"},
		"a map for a list":                             {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n    a: b\n", 7, "got object"},
		"a list for a map":                             {"apiVersion: v1\nkind: Pod\nmetadata: []\n", 3, "got array"},
		"a number for a label":                         {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n    ok: \"1\"\n    bad: 1\n", 7, "metadata.labels: got number, want string"},
		"a bool for a label":                           {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  labels:\n    ok: \"1\"\n    bad: true\n", 7, "metadata.labels: got bool, want string"},
		"a quantity that is none":                      {"apiVersion: v1\nkind: Node\nmetadata:\n  name: a\nstatus:\n  capacity:\n    cpu: lots\n", 1, "quantities must match"},
		"not a number":                                 {"apiVersion: v1\nkind: Pod\nmetadata:\n  generation: .nan\n", 1, "NaN"},
		"no name":                                      {"apiVersion: v1\nkind: Pod\nmetadata:\n  namespace: x\n", 3, "metadata.name: missing"},
		"no metadata":                                  {"apiVersion: v1\nkind: Pod\n", 1, "metadata.name: missing"},
		"an impossible name":                           {"apiVersion: v1\nkind: Pod\nmetadata:\n  labels: {}\n  name: a/b\n", 5, `metadata.name: "a/b"`},
		"an impossible namespace":                      {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  namespace: X\n", 5, `metadata.namespace: "X"`},
		"a namespaced baseline policy":                 {strings.Replace(baselinePolicy, "name: default", "name: default\n  namespace: x", 1), 5, "metadata.namespace: not for a BaselineAdminNetworkPolicy"},
		"a priority that is none":                      {strings.Replace(clusterPolicy, "priority: 10", "priority: high", 1), 7, "spec.priority: got string, want int32"},
		"a namespaced Node":                            {"apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  namespace: x\n", 5, "metadata.namespace: not for a Node"},
		"an address that is none":                      {strings.Replace(podA, "fd00::1", "fd00::g", 1), 11, "status.podIPs[1]: "},
		"an empty address":                             {strings.Replace(podA, "fd00::1", `""`, 1), 11, "status.podIPs[1]: "},
		"an address with a zone":                       {strings.Replace(podA, "fd00::1", "fe80::1%eth0", 1), 11, "has a zone"},
		"the old address field":                        {"apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nstatus:\n  podIP: 10.0.0.256\n", 6, "status.podIP: "},
		"a pod range that is none":                     {"apiVersion: v1\nkind: Node\nmetadata:\n  name: a\nspec:\n  podCIDRs: [10.0.0.0/24,\n    fd00::1]\n", 7, "spec.podCIDRs[1]: "},
		"an address that ends in a colon, in brackets": {"apiVersion: v1\nkind: Node\nmetadata:\n  name: a\nspec:\n  podCIDRs: [10.0.0.0/24,\n    fd00::]\n", 7, "spec.podCIDRs: got object, want string"},
		"the old pod range field":                      {"apiVersion: v1\nkind: Node\nmetadata:\n  name: a\nspec:\n  podCIDR: 10.0.0.0\n", 6, "spec.podCIDR: "},
		"an object twice":                              {namespaceX, 1, "Namespace x is already at line 1"},
		"a List's items":                               {"apiVersion: v1\nkind: List\nitems:\n- " + indent(podA) + "- " + indent(strings.Replace(podA, "name: a", "nam: a", 1)), 18, `unknown field "metadata.nam"`},
		"a List without a list":                        {"apiVersion: v1\nkind: List\nitems: 1\n", 3, "items is not a list"},
		"a List with more":                             {"apiVersion: v1\nkind: List\nitems: []\nspec: {}\n", 4, `unknown field "spec" of a List`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse([]byte(namespaceX + "---\n" + tc.in))
			f, ok := err.(fault)
			if !ok {
				t.Fatalf("got %v, want a fault", err)
			}
			if want := lines + tc.line; f.Line != want || !strings.Contains(f.Err.Error(), tc.text) {
				t.Errorf("got line %d: %v\nwant line %d: …%s…", f.Line, f.Err, want, tc.text)
			}
		})
	}
}

func TestParseRefusesAnEmptyFile(t *testing.T) {
	if _, err := parse(nil); err == nil {
		t.Error("an empty file is right, want a fault: it may be half written")
	}
}

func TestParseReadsValuesAsKubectlDoes(t *testing.T) {
	c, err := parse([]byte("apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n  creationTimestamp: 2024-05-06T07:08:09Z\n" +
		"  labels:\n    1: one\n    since: \"2024-05-06\"\n    true: \"yes\"\n  uid: u-1\n  resourceVersion: \"77\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := c.manifests[0].object.(*corev1.Pod)
	if got := p.Labels; got["1"] != "one" || got["true"] != "yes" || got["since"] != "2024-05-06" {
		t.Errorf("labels %v", got)
	}
	if p.CreationTimestamp.UTC().Hour() != 7 {
		t.Errorf("created at %v", p.CreationTimestamp)
	}
	if p.UID != "u-1" || p.ResourceVersion != "" || p.Namespace != "default" {
		t.Errorf("got uid %q, version %q, namespace %q", p.UID, p.ResourceVersion, p.Namespace)
	}
}

func TestParseLeavesDefaultsOfTheSpecAlone(t *testing.T) {
	c, err := parse([]byte(denyAll + "  ingress:\n  - ports:\n    - port: http\n"))
	if err != nil {
		t.Fatal(err)
	}
	p := c.manifests[0].object.(*networkingv1.NetworkPolicy)
	if port := p.Spec.Ingress[0].Ports[0]; port.Protocol != nil || port.Port.StrVal != "http" || p.Spec.PolicyTypes != nil {
		t.Errorf("got %+v", p.Spec)
	}
	if p.UID != "NetworkPolicy/default/deny" {
		t.Errorf("got uid %q", p.UID)
	}
}

func TestParseSurvivesAnAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := range 20 {
		prev := "*a" + string(rune('a'+i))
		if i == 0 {
			prev = "*a0"
		}
		b.WriteString("a" + string(rune('b'+i)) + ": &a" + string(rune('b'+i)) + " [" + strings.Repeat(prev+", ", 9) + prev + "]\n")
	}
	if _, err := parse([]byte(b.String())); err == nil || !strings.Contains(err.Error(), "excessive aliasing") {
		t.Errorf("got %v, want it refused", err)
	}
}
