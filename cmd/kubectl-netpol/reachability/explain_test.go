package reachability

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// specs are the specs of policies, empty for none.
type specs struct {
	np   string // in namespace x
	anp  string // subjects are always "subject: {namespaces: {}}"
	cnp  string // in tier Admin
	banp string
}

// explained explains a connection in a cluster with these policies. The text has the
// reasons, outcomes and "field: means; why" of each item.
func explained(t *testing.T, src, dst, port, protocol string, s specs) (Explanation, string) {
	t.Helper()
	label := func(p *corev1.Pod) { p.Labels = map[string]string{"app": p.Name} }
	in := clusterstate.Input{
		Features:   compile.AllFeatures(),
		Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"team": "x"}}}},
		Nodes: []*corev1.Node{{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}},
			Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: "192.168.0.1"}}},
		}},
		Pods: []*corev1.Pod{
			modified(pod("x/a", "n1", "10.0.0.1"), label), modified(pod("x/b", "n1", "10.0.0.2"), label), modified(pod("y/a", "", "10.0.0.3"), label),
			modified(pod("x/host", "n2", "192.168.0.2"), onHost),
		},
	}
	s.add(t, &in)
	c := New(in)
	from, err1 := c.Endpoint(src)
	to, err2 := c.Endpoint(dst)
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

func (s *specs) add(t *testing.T, in *clusterstate.Input) {
	t.Helper()
	read := func(text string, spec any) bool {
		if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
			t.Fatal(err)
		}
		return text != ""
	}
	all := v1alpha1.AdminNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "np"}}
	if read(s.np, &np.Spec) {
		in.Policies = append(in.Policies, np)
	}
	anp := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if read(s.anp, &anp.Spec) {
		anp.Spec.Subject = all
		in.Policies = append(in.Policies, anp)
	}
	cnp := &proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	if read(s.cnp, &cnp.Spec) {
		cnp.Spec.Tier, cnp.Spec.Subject.Namespaces = v1beta1.AdminTier, all.Namespaces
		in.Policies = append(in.Policies, cnp)
	}
	banp := &v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if read(s.banp, &banp.Spec) {
		banp.Spec.Subject = all
		in.Policies = append(in.Policies, banp)
	}
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
			"spec.ingress[0].from: any peer: the list is empty; \nspec.ingress[0].ports: any protocol and port: the list is empty; \nallow, which is final"},
		"egress": {"x/a", "x/b", "80", "TCP", "{policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {app: c}}}]}]}", false,
			"spec.egress[0].to[0]: pods with app=c of namespace x; x/b has app=b\n"},
		"isolated":            {"x/a", "x/b", "80", "TCP", "{}", false, "NetworkPolicies isolate the pod and none of their rules matches\nno rule matches, and the pod is isolated: deny, which is final"},
		"another namespace":   {"y/a", "x/b", "80", "TCP", "ingress: [{from: [{podSelector: {}}]}]", false, "all pods of namespace x; y/a is in namespace y\n"},
		"no Namespace":        {"y/a", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}}]}]", false, "all pods of namespaces with a=b; there is no Namespace object y to have labels\n"},
		"namespace labels":    {"x/a", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {matchLabels: {a: b}}}]}]", false, "namespace x has team=x\n"},
		"any namespace":       {"x/a", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {}}]}]", true, "all pods of all namespaces; \n"},
		"a node":              {"x/host", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {}}]}]", false, "x/host is node n2, and selectors match pods only\n"},
		"an external address": {"203.0.113.9", "x/b", "80", "TCP", "ingress: [{from: [{namespaceSelector: {}}]}]", false, "203.0.113.9 is no pod's address\n"},
		"excepted": {"10.0.0.1", "x/b", "80", "TCP", "ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.0.0.0/30, 10.1.0.0/16]}}]}]", false,
			"addresses 10.0.0.0/8 except 10.0.0.0/30, 10.1.0.0/16; 10.0.0.1 is excepted\n"},
		"a range":                    {"x/a", "x/b", "80", "TCP", "ingress: [{ports: [{port: 81, endPort: 90}]}]", false, "TCP 81-90; the connection is to port 80\n"},
		"every port":                 {"x/a", "x/b", "80", "UDP", "ingress: [{ports: [{protocol: UDP}]}]", true, "every port of UDP; \n"},
		"another protocol":           {"x/a", "x/b", "", "ICMP", "ingress: [{ports: [{port: 81}]}]", false, "TCP 81; the connection is ICMP\n"},
		"a name":                     {"x/a", "x/b", "80", "TCP", "ingress: [{ports: [{port: db}]}]", false, "TCP db; x/b declares no TCP port of that name\n"},
		"a name outside":             {"x/a", "203.0.113.9", "80", "TCP", "{policyTypes: [Egress], egress: [{ports: [{port: db}]}]}", false, "203.0.113.9 is not a pod and declares no ports\n"},
		"a name, another number":     {"x/a", "x/b", "80", "TCP", "ingress: [{ports: [{port: http}]}]", false, "TCP http; x/b declares the name for another port than 80\n"},
		"a name looked up":           {"x/a", "x/b", "http", "TCP", "ingress: [{ports: [{port: http}]}]", true, "http is port 8080 of x/b\n"},
		"the subject is unreadable":  {"x/a", "x/b", "80", "TCP", "podSelector: {matchLabels: {app: no value}}", true, "spec.podSelector: InvalidSelector"},
		"a pod that is not known":    {"x/a", "10.0.0.99", "80", "TCP", "{}", false, "10.0.0.99 is in a node's range of pod addresses and no known pod has it"},
		"from one that is not known": {"10.0.0.99", "x/a", "80", "TCP", "ingress: [{from: [{podSelector: {}}]}]", false, "10.0.0.99 is in a node's range of pod addresses and no known pod has it"},
		"a pod without a node":       {"y/a", "192.168.0.1", "80", "TCP", "ingress: [{}]", true, "y/a has no spec.nodeName: it is evaluated as by the node that it will be scheduled to"},
		"hairpin":                    {"x/a", "x/a", "80", "TCP", "{}", true, "always allowed, not evaluated: what a pod sends to its own address does not leave it\n\n"},
		"no family":                  {"x/a", "2001:db8::1", "80", "TCP", "{}", false, "no connection: x/a and 2001:db8::1 have no address of one family"},
		"no such port":               {"x/a", "x/b", "db", "TCP", "{}", false, "no connection: x/b declares no TCP port named db"},
		"both deny":                  {"x/a", "x/b", "80", "TCP", "policyTypes: [Ingress, Egress]", false, "denied by egress of x/a and by ingress of x/b"},
	} {
		t.Run(name, func(t *testing.T) {
			e, text := explained(t, tc.src, tc.dst, tc.port, tc.protocol, specs{np: tc.spec})
			if e.Allowed != tc.allowed || !strings.Contains(text, tc.want) {
				t.Errorf("got %v, want %v with %q in\n%s", e.Allowed, tc.allowed, tc.want, text)
			}
		})
	}
}

func TestExplanationsOfAdministratorsPolicies(t *testing.T) {
	const (
		passX    = "ingress: [{action: Pass, from: [{namespaces: {matchLabels: {team: x}}}]}]"
		allowAll = "ingress: [{action: Allow, from: [{namespaces: {}}]}]"
		toNodes  = "egress: [{action: Deny, to: [{nodes: {}}]}]"
		toZoneB  = "egress: [{action: Deny, to: [{nodes: {matchLabels: {zone: b}}}]}]"
		learned  = "egress: [{action: Accept, to: [{domainNames: [a.example, '*.b.example']}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]"
		halves   = "egress: [{action: Allow, to: [{namespaces: {matchLabels: {team: y}}}, {networks: [10.0.0.0/8]}], ports: [{namedPort: http}, {portNumber: {port: 9, protocol: TCP}}]}]"
	)
	for name, tc := range map[string]struct {
		src, dst, port, protocol string
		specs                    specs
		allowed                  bool
		want                     string
		never                    string
	}{
		"admin passes, NetworkPolicy denies, baseline would have allowed": {"x/a", "x/b", "80", "TCP", specs{anp: passX, np: "{}", banp: allowAll}, false, "" +
			"ingress: NetworkPolicies isolate the pod and none of their rules matches\n" +
			"spec.ingress[0].from[0]: all pods of namespaces with team=x; \n" +
			"spec.ingress[0].ports: any protocol and port: the list is empty; \n" +
			"pass: the next tier is evaluated\n" +
			"no rule matches, and the pod is isolated: deny, which is final\n" +
			"not evaluated; would allow: BaselineAdminNetworkPolicy/default spec.ingress[0] matches\n", ""},
		"admin decides, others would not": {"x/a", "x/b", "80", "TCP", specs{anp: allowAll, np: "{}", banp: "ingress: [{action: Deny, from: [{namespaces: {matchLabels: {a: b}}}]}]"}, true, "" +
			"allow, which is final\n" +
			"not evaluated; would deny: NetworkPolicies isolate the pod and none of their rules matches\n" +
			"not evaluated; no rule of it would match\n", ""},
		"pass out of the last tier":   {"x/a", "x/b", "80", "TCP", specs{anp: passX}, true, "pass, and no tier is left: allow\n", "next tier"},
		"no rule of the last tier":    {"y/a", "x/b", "80", "TCP", specs{anp: passX, banp: passX}, true, "no rule matches: the next tier is evaluated\n", ""},
		"nothing decides":             {"x/a", "203.0.113.9", "80", "TCP", specs{anp: toNodes}, true, "egress: no rule of the policies that select the pod allows or denies it, and none isolates the pod\n", ""},
		"the list of ports":           {"x/a", "x/b", "80", "TCP", specs{anp: "ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {port: 81, protocol: TCP}}]}]"}, true, "spec.ingress[0].ports[0]: TCP 81; the connection is to port 80\n", ""},
		"the list of protocols":       {"x/a", "x/b", "80", "TCP", specs{cnp: "ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 80}}}]}]"}, true, "spec.ingress[0].protocols[0]: UDP 80; the connection is TCP\n", ""},
		"a name of any protocol":      {"x/a", "x/b", "dns", "UDP", specs{anp: "ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{namedPort: dns}]}]"}, false, "spec.ingress[0].ports[0]: dns of any protocol; \n", ""},
		"a name that is not declared": {"x/a", "x/b", "53", "TCP", specs{anp: "ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{namedPort: dns}]}]"}, true, "dns of any protocol; x/b declares no TCP port of that name\n", ""},
		"a peer that cannot be read":  {"x/a", "x/b", "80", "TCP", specs{anp: "ingress: [{action: Pass, from: [{}]}]"}, false, "spec.ingress[0].from: any peer: the peer has 0 fields that are known, exactly one is needed; the rule denies everything; \nspec.ingress[0].ports: any protocol and port; \n", "empty"},
		"a port that cannot be read":  {"x/a", "x/b", "80", "TCP", specs{anp: "ingress: [{action: Pass, from: [{namespaces: {}}], ports: [{}]}]"}, false, "spec.ingress[0].ports: any protocol and port: the port has 0 fields that are known, exactly one is needed; the rule denies its peers on every port; \n", "empty"},
		"named ports, of pods":        {"x/a", "x/b", "http", "TCP", specs{anp: halves}, true, "to[1]: nothing; the peer declares no ports; named ports do not match it\nspec.egress[0].ports[0]: http of any protocol; \n", ""},
		"named ports, of addresses":   {"x/a", "x/b", "http", "TCP", specs{anp: halves}, true, "spec.egress[0].to[1]: addresses 10.0.0.0/8; \nspec.egress[0].ports[0]: a named port; peers that are not pods declare none\n", "to[0]: nothing"},
		"named ports, denied":         {"x/a", "x/b", "http", "TCP", specs{anp: strings.Replace(halves, "Allow", "Deny", 1)}, false, "spec.egress[0].ports: any protocol and port: the rule has peers that declare no ports, and a port has a name; the rule denies its peers on every port; \n", "empty"},
		"the own node, denied":        {"x/a", "192.168.0.1", "80", "TCP", specs{anp: toNodes, np: "policyTypes: [Egress]"}, false, "denied by egress of x/a\n192.168.0.1 is an address of node n1\negress: AdminNetworkPolicy/a spec.egress[0] matches\nspec.egress[0].to[0]: all nodes; \nspec.egress[0].ports: any protocol and port: the list is empty; \ndeny, which is final\nnot evaluated; would allow: NetworkPolicy lets every pod reach its own node\n", "ingress"},
		"the own node, by NetworkPolicy": {"x/a", "192.168.0.1", "80", "TCP", specs{anp: toZoneB, np: "policyTypes: [Egress]", banp: toNodes}, true, "" +
			"egress allows it, and a node has no policies\n192.168.0.1 is an address of node n1\n" +
			"egress: NetworkPolicy lets every pod reach its own node\nspec.egress[0].to[0]: nodes with zone=b; node n1 has zone=a\n" +
			"spec.egress[0].ports: any protocol and port: the list is empty; \nno rule matches: the next tier is evaluated\n" +
			"NetworkPolicy lets every pod reach its own node: allow, which is final\n" +
			"not evaluated; would deny: BaselineAdminNetworkPolicy/default spec.egress[0] matches\n", "ingress"},
		"the own node, no rule may deny it": {"x/a", "192.168.0.1", "80", "TCP", specs{anp: allowAll, np: "policyTypes: [Egress]"}, true, "allowed, not evaluated: only an administrator's rule about nodes or networks could deny the pod its own node, and there is none for it\n", "gress:"},
		"from the own node":                 {"192.168.0.1", "x/a", "80", "TCP", specs{anp: "ingress: [{action: Deny, from: [{}]}]"}, true, "always allowed, not evaluated: a node reaches itself and the pods on it\n", ""},
		"another node":                      {"x/a", "x/host", "80", "TCP", specs{anp: toNodes}, true, "all nodes; 192.168.0.2 is in no Node's status.addresses\n", ""},
		"itself, through a Service":         {"x/a", "x/a", "80", "TCP", specs{anp: "ingress: [{action: Deny, from: [{namespaces: {}}]}]"}, true, "through a Service it is denied by ingress of x/a: AdminNetworkPolicy/a spec.ingress[0] matches\n", ""},
		"itself, isolated":                  {"x/a", "x/a", "80", "TCP", specs{np: "{}", banp: "ingress: [{action: Deny, from: [{namespaces: {}}]}]"}, true, "does not leave it\n\n", "Service"},
		"names that may be learned": {"x/a", "203.0.113.9", "80", "TCP", specs{cnp: learned}, false, "" +
			"ClusterNetworkPolicy/c spec.egress[0] allows by domain names: if 203.0.113.9 is an address that x/a has learned for one of them, which only its agent knows, egress allows it\n" +
			"egress: ClusterNetworkPolicy/c spec.egress[1] matches\n" +
			"spec.egress[0].to[0]: addresses that the pod has learned for a.example, *.b.example; addresses learned from DNS are known to the agent only\n", ""},
		"names that would change nothing":  {"x/a", "203.0.113.9", "80", "TCP", specs{cnp: "egress: [{action: Accept, to: [{domainNames: [a.example]}]}]"}, true, "known to the agent only\n", "if 203.0.113.9"},
		"names behind the one who decides": {"x/a", "203.0.113.9", "80", "TCP", specs{cnp: "egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}, {action: Accept, to: [{domainNames: [a.example]}]}]"}, false, "deny, which is final\n", "a.example"},
		"names for another port":           {"x/a", "203.0.113.9", "80", "TCP", specs{cnp: strings.Replace(learned, "}]},", "}], protocols: [{tcp: {destinationPort: {number: 443}}}]},", 1)}, false, "TCP 443; the connection is to port 80\n", "if 203.0.113.9"},
		"names that were passed":           {"x/a", "203.0.113.9", "80", "TCP", specs{cnp: strings.Replace(learned, "[{", "[{action: Pass, to: [{networks: [0.0.0.0/0]}]}, {", 1), np: "policyTypes: [Egress]"}, false, "known to the agent only\n", "if 203.0.113.9"},
		"names of a pod that is not known": {"x/a", "10.0.0.99", "80", "TCP", specs{cnp: "egress: [{action: Accept, to: [{domainNames: [a.example]}]}]", np: "policyTypes: [Egress]"}, false, "names do not match 10.0.0.99", "if 10.0.0.99"},
		"names of a pod":                   {"x/a", "x/b", "80", "TCP", specs{cnp: learned}, false, "names do not match", "has learned for one of them"},
		"names of a Service":               {"x/a", "x/b", "80", "TCP", specs{cnp: strings.Replace(learned, "a.example", "'*.svc.cluster.local'", 1)}, false, "has learned for one of them", ""},
		"names of metadata":                {"x/a", "169.254.169.254", "80", "TCP", specs{cnp: strings.Replace(learned, "a.example", "'*.svc.cluster.local'", 1)}, false, "names do not match 169.254.169.254", "has learned for one of them"},
		"a pod that is not known":          {"10.0.0.99", "x/a", "80", "TCP", specs{anp: "ingress: [{action: Allow, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]"}, false, "10.0.0.99 is in a node's range of pod addresses and no known pod has it", "final"},
	} {
		t.Run(name, func(t *testing.T) {
			e, text := explained(t, tc.src, tc.dst, tc.port, tc.protocol, tc.specs)
			if e.Allowed != tc.allowed || !strings.Contains(text, tc.want) || tc.never != "" && strings.Contains(text, tc.never) {
				t.Errorf("got %v, want %v with %q and without %q in\n%s", e.Allowed, tc.allowed, tc.want, tc.never, text)
			}
		})
	}
}

// A finding is reported only for the direction and the pods that it affects.
func TestFindingsAreReportedWhereTheyMatter(t *testing.T) {
	spec := "{podSelector: {matchLabels: {app: %}}, policyTypes: [Ingress, Egress], ingress: [{from: [{}]}], egress: [{to: [{}]}]}"
	for app, want := range map[string]string{"b": "spec.ingress[0].from[0]", "c": ""} {
		t.Run("app "+app, func(t *testing.T) {
			e, _ := explained(t, "x/a", "x/b", "80", "TCP", specs{np: strings.ReplaceAll(spec, "%", app)})
			got := ""
			for _, d := range e.Directions {
				for _, f := range d.Findings {
					got += f.Field
				}
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
