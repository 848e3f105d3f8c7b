package reachability

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// explained is x/a to x/b in a cluster with a policy of namespace x, as one text:
// reasons, outcomes, and "field: means; why" of each item.
func explained(t *testing.T, src, dst, port, protocol, spec string) (Explanation, string) {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "np"}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	label := func(p *corev1.Pod) { p.Labels = map[string]string{"app": p.Name} }
	c := New(compile.Input{
		Features:   compile.AllFeatures(),
		Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"team": "x"}}}},
		Nodes:      []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"}}},
		Pods: []*corev1.Pod{
			with(pod("x/a", "n1", "10.0.0.1"), label), with(pod("x/b", "n1", "10.0.0.2"), label), with(pod("y/a", "", "10.0.0.3"), label),
			with(pod("x/host", "n2", "192.168.0.2"), onHost),
		},
		NetworkPolicies: []*networkingv1.NetworkPolicy{p},
	})
	from, err1 := c.Side(src)
	to, err2 := c.Side(dst)
	number, err3 := ParsePort(port, protocol)
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	e := c.Explain(&from, &to, number, FirstCommon)
	text := e.Reason + "\n" + strings.Join(e.Notes, "\n") + "\n"
	for _, d := range e.Directions {
		text += d.Direction + ": " + d.Reason + "\n"
		for _, tier := range d.Tiers {
			for _, r := range tier.Rules {
				for _, i := range append(r.Peers, r.Ports...) {
					text += i.Field + ": " + i.Means + "; " + i.Why + "\n"
				}
			}
			text += tier.Outcome + "\n"
		}
		for _, f := range d.Findings {
			text += f.Field + ": " + f.Reason + "\n"
		}
	}
	return e, text
}

func TestExplanationsInWords(t *testing.T) {
	for name, tc := range map[string]struct {
		src, dst, port, protocol string
		spec                     string
		allowed                  bool
		want                     string
	}{
		"a rule matches": {"x/a", "x/b", "80", "TCP", "ingress: [{}]", true, "x/np spec.ingress[0] matches"},
		"empty lists": {"x/a", "x/b", "80", "TCP", "ingress: [{}]", true,
			"spec.ingress[0].from: anybody: the list is empty; \nspec.ingress[0].ports: any protocol and port: the list is empty; \nallow: what comes after is not asked"},
		"egress": {"x/a", "x/b", "80", "TCP", "{policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: c}}}]}]}", false,
			"spec.egress[0].to[0]: pods with app=c of namespace x; x/b has app=b\n"},
		"isolated":          {"x/a", "x/b", "80", "TCP", "{}", false, "policies select the pod and none of their rules matches\nno rule matches, and the pod is isolated: deny"},
		"another namespace": {"y/a", "x/b", "80", "TCP", "ingress: [{from: [{podSelector: {}}]}]", false, "all pods of namespace x; y/a is in namespace y\n"},
		"no Namespace":      {"y/a", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}}]}]", false, "all pods of namespaces with a=b; there is no Namespace object y to have labels\n"},
		"namespace labels":  {"x/a", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}}]}]", false, "namespace x has team=x\n"},
		"any namespace":     {"x/a", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {}}]}]", true, "all pods of all namespaces; \n"},
		"a node":            {"x/host", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {}}]}]", false, "x/host is node n2, and selectors match pods only\n"},
		"an outsider":       {"203.0.113.9", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {}}]}]", false, "203.0.113.9 is no pod's address\n"},
		"excepted": {"10.0.0.1", "x/b", "80", "TCP", "ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/30, 10.1.0.0/16]}}]}]", false,
			"addresses 10.0.0.0/8 except 10.0.0.0/30, 10.1.0.0/16; 10.0.0.1 is excepted\n"},
		"a range":                    {"x/a", "x/b", "80", "TCP", "ingress: [{ports: [{port: 81, endPort: 90}]}]", false, "TCP 81-90; the connection is to port 80\n"},
		"every port":                 {"x/a", "x/b", "80", "UDP", "ingress: [{ports: [{protocol: UDP}]}]", true, "every port of UDP; \n"},
		"another protocol":           {"x/a", "x/b", "", "ICMP", "ingress: [{ports: [{port: 81}]}]", false, "TCP 81; the connection is ICMP\n"},
		"a name":                     {"x/a", "x/b", "80", "TCP", "ingress: [{ports: [{port: db}]}]", false, "TCP db; x/b declares no TCP port of that name\n"},
		"a name outside":             {"x/a", "203.0.113.9", "80", "TCP", "{policyTypes: [Egress], egress: [{ports: [{port: db}]}]}", false, "203.0.113.9 is no pod and declares no ports\n"},
		"a name, another number":     {"x/a", "x/b", "80", "TCP", "ingress: [{ports: [{port: http}]}]", false, "TCP http; x/b declares the name for another port than 80\n"},
		"a name looked up":           {"x/a", "x/b", "http", "TCP", "ingress: [{ports: [{port: http}]}]", true, "http is port 8080 of x/b\n"},
		"the subject is unreadable":  {"x/a", "x/b", "80", "TCP", "podSelector: {matchLabels: {app: no value}}", true, "spec.podSelector: InvalidSelector"},
		"a pod that is not known":    {"x/a", "10.0.0.99", "80", "TCP", "{}", false, "10.0.0.99 is in a node's range of pod addresses and no known pod has it"},
		"from one that is not known": {"10.0.0.99", "x/a", "80", "TCP", "{}", false, "10.0.0.99 is in a node's range of pod addresses and no known pod has it"},
		"a pod without a node":       {"y/a", "x/b", "80", "TCP", "ingress: [{}]", true, "y/a has no spec.nodeName: it is judged as the node will that gets it"},
		"hairpin":                    {"x/a", "x/a", "80", "TCP", "{}", true, "always allowed: a pod reaches itself"},
		"no family":                  {"x/a", "2001:db8::1", "80", "TCP", "{}", false, "no connection: x/a and 2001:db8::1 have no address of one family"},
		"no such port":               {"x/a", "x/b", "db", "TCP", "{}", false, "no connection: x/b declares no TCP port named db"},
		"both deny":                  {"x/a", "x/b", "80", "TCP", "policyTypes: [Ingress, Egress]", false, "denied by egress of x/a and by ingress of x/b"},
	} {
		t.Run(name, func(t *testing.T) {
			e, text := explained(t, tc.src, tc.dst, tc.port, tc.protocol, tc.spec)
			if e.Allowed != tc.allowed || !strings.Contains(text, tc.want) {
				t.Errorf("got %v, want %v and %q in\n%s", e.Allowed, tc.allowed, tc.want, text)
			}
		})
	}
}

// A finding is told where it matters: not in the other direction, and not of a
// policy that has nothing to do with the pod.
func TestFindingsAreToldWhereTheyMatter(t *testing.T) {
	spec := "{podSelector: {matchLabels: {app: %}}, policyTypes: [Ingress, Egress], ingress: [{from: [{}]}], egress: [{to: [{}]}]}"
	for app, want := range map[string]string{"b": "spec.ingress[0].from[0]", "c": ""} {
		e, _ := explained(t, "x/a", "x/b", "80", "TCP", strings.ReplaceAll(spec, "%", app))
		got := ""
		for _, d := range e.Directions {
			for _, f := range d.Findings {
				got += f.Field
			}
		}
		if got != want {
			t.Errorf("app %s: got %q, want %q", app, got, want)
		}
	}
}
