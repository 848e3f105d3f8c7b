package lint

import (
	"slices"
	"strings"
	"testing"
)

// networkPolicy returns a policy in namespace shop for the pods labelled app.
func networkPolicy(name, app, spec string) string {
	subject := "{}"
	if app != "" {
		subject = "{matchLabels: {app: " + app + "}}"
	}
	return "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: shop, name: " + name + "}\nspec:\n  podSelector: " + subject + "\n  " + strings.ReplaceAll(spec, "\n", "\n  ")
}

const allowDNS = `
- to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]
  ports: [{protocol: UDP, port: 53}, {protocol: TCP, port: 53}]`

// Variants of the mistakes, and correct policies that resemble them, in the cluster of the
// examples.
func TestVariants(t *testing.T) {
	cluster := read(t, "cluster.yaml")
	for _, tc := range []struct {
		name     string
		policies []string
		want     []string
		message  string // a substring of the message
		not      string // a substring of no message
		fix      string // of the first finding
	}{
		{name: "two items that both match",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{namespaceSelector: {matchLabels: {team: shop}}}, {podSelector: {matchLabels: {app: api}}}]}]")}},
		{name: "OR for AND, the other way round",
			policies: []string{networkPolicy("p", "api", "ingress: [{from: [{podSelector: {matchLabels: {app: prometheus}}}, {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}]")},
			want:     []string{"or-not-and"}},
		{name: "OR for AND with DNS",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}, {podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{protocol: UDP, port: 53}, {port: 53}]}]")},
			want:     []string{"or-not-and"}},
		{name: "the same value under another key",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{podSelector: {matchLabels: {app.kubernetes.io/name: api}}}]}]")},
			want:     []string{"peer-selects-none"}, message: "app: api"},
		{name: "letters swapped",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{podSelector: {matchLabels: {app: aip}}}]}]")},
			want:     []string{"peer-selects-none"}, message: "near it there are pods with: app: api"},
		{name: "another number at the end is another name",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{podSelector: {matchLabels: {app: web2}}}]}]")},
			want:     []string{"peer-selects-none"}, message: "app=web2 matches no pod"},
		{name: "a near name that the item beside it has is another name",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{podSelector: {matchLabels: {app: aip}}}, {podSelector: {matchLabels: {app: api}}}]}]")},
			want:     []string{"peer-selects-none"}, not: "near it"},
		{name: "a near name of the pods of another policy is another name",
			policies: []string{networkPolicy("p", "aip", "ingress: [{}]"), networkPolicy("q", "api", "ingress: [{}]")},
			want:     []string{"selects-no-pod"}, not: "near it"},
		{name: "a podSelector alone for pods of another namespace",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{podSelector: {matchLabels: {app: prometheus}}}]}]")},
			want:     []string{"peer-selects-none"}, message: "of namespace shop; such pods are in namespace monitoring"},
		{name: "a podSelector alone that is only near pods of another namespace",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{podSelector: {matchLabels: {app: prometheuss}}}]}]")},
			want:     []string{"peer-selects-none"}, not: "such pods are in"},
		{name: "a namespace that the files do not have",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress-nginx}}}]}]")}},
		{name: "kube-system by name",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress: [{to: [{namespaceSelector: {matchLabels: {name: kube-system}}}], ports: [{protocol: UDP, port: 53}, {port: 53}]}]")},
			want:     []string{"namespace-label", "no-dns"}},
		{name: "an allow for the same namespace beside the default deny",
			policies: []string{networkPolicy("p", "", "ingress: [{from: [{podSelector: {}}]}]")}},
		{name: "all egress denied needs no DNS",
			policies: []string{networkPolicy("p", "db", "policyTypes: [Egress]")}},
		{name: "DNS of the node",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: 203.0.113.0/24}}]}, {to: [{ipBlock: {cidr: 169.254.20.10/32}}], ports: [{protocol: UDP, port: 53}, {port: 53}]}]")}},
		{name: "DNS to any peer",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: 203.0.113.0/24}}]}, {ports: [{protocol: UDP, port: 53}, {port: 53}]}]")}},
		{name: "DNS in another policy",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: 203.0.113.0/24}}]}]"), networkPolicy("dns", "", "policyTypes: [Egress]\negress:"+allowDNS)}},
		{name: "an except that is opened on purpose",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress:"+allowDNS+"\n- to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]\n- to: [{ipBlock: {cidr: 10.1.2.0/24}}]")}},
		{name: "an except that is opened for one port",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress:"+allowDNS+"\n- to: [{ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8]}}]\n- ports: [{port: 443}]")}},
		{name: "an except that another policy opens",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress:"+allowDNS+"\n- to: [{ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}}]\n  ports: [{port: 80}]"), networkPolicy("q", "", "policyTypes: [Egress]\negress:"+allowDNS+"\n- ports: [{port: 80}]")},
			want:     []string{"except-reopened", "shadowed"}},
		{name: "a named port of another protocol",
			policies: []string{networkPolicy("p", "db", "ingress: [{ports: [{protocol: UDP, port: sql}]}]")},
			want:     []string{"named-port"}, message: `shop/db declare port "sql" for TCP, not for UDP`},
		{name: "a named port of another protocol beside that of its own",
			policies: []string{networkPolicy("p", "db", "ingress: [{ports: [{protocol: UDP, port: sql}, {port: sql}]}]")},
			want:     []string{"named-port"}, fix: "Remove the item: the one with protocol: TCP stands beside it."},
		{name: "the port of a Service beside that of the pods",
			policies: []string{networkPolicy("p", "web", "ingress: [{ports: [{port: 80}, {port: 8080}]}]")},
			want:     []string{"service-port"}, fix: "Remove the item: the one with port: 8080 stands beside it."},
		{name: "a named port for addresses",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress:"+allowDNS+"\n- to: [{ipBlock: {cidr: 203.0.113.0/24}}]\n  ports: [{port: https}]")},
			want:     []string{"named-port"}},
		{name: "a named port from addresses",
			policies: []string{networkPolicy("p", "web", "ingress: [{from: [{ipBlock: {cidr: 203.0.113.0/24}}], ports: [{port: http}]}]")}},
		{name: "a namespace that is isolated at the other end",
			policies: []string{
				networkPolicy("p", "api", "ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}], ports: [{port: 9090}]}]"),
				strings.Replace(networkPolicy("closed", "", "policyTypes: [Egress]"), "namespace: shop", "namespace: monitoring", 1),
			},
			want: []string{"half-open"}},
		{name: "egress to pods whose ingress is isolated",
			policies: []string{networkPolicy("p", "api", "policyTypes: [Egress]\negress:"+allowDNS+"\n- to: [{podSelector: {matchLabels: {app: db}}}]\n  ports: [{port: 5432}]")},
			want:     []string{"half-open"}},
		{name: "NotIn beside all namespaces",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [shop]}]}}, {namespaceSelector: {}}]}]")},
			want:     []string{"except-reopened"}, message: "team in (shop) is excluded, and allowed by shop/p spec.ingress[0].from[1], every pod"},
		{name: "NotIn of pods beside all namespaces, in another policy",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}}]}]"), networkPolicy("q", "", "ingress: [{from: [{namespaceSelector: {}}]}]")},
			want:     []string{"except-reopened", "shadowed"}, message: "app in (web) is excluded, and allowed by shop/q"},
		{name: "NotIn in one item with all namespaces",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{namespaceSelector: {}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [web]}]}}]}]")}},
		{name: "NotIn beside what it excludes, on purpose",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [shop]}]}}, {namespaceSelector: {matchLabels: {team: shop}}, podSelector: {matchLabels: {app: api}}}]}]")}},
		{name: "NotIn beside all namespaces on another port",
			policies: []string{networkPolicy("p", "db", "ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: team, operator: NotIn, values: [shop]}]}}], ports: [{port: 5432}]}, {from: [{namespaceSelector: {}}], ports: [{port: 9187}]}]")}},
		{name: "a name near the one that stands beside it",
			policies: []string{networkPolicy("p", "web", "ingress: [{ports: [{port: http}, {port: https}]}]")},
			want:     []string{"named-port"}, message: `no port of shop/web has the name "https"; they have http`, not: "near it"},
		{name: "two equal policies: one of them",
			policies: []string{networkPolicy("a", "db", "ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]"), networkPolicy("b", "db", "ingress: [{from: [{podSelector: {matchLabels: {app: api}}}]}]")},
			want:     []string{"shadowed"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := input(t, append([]string{cluster}, tc.policies...)...)
			findings := Check(in)
			if got := found(in); !slices.Equal(got, tc.want) {
				t.Errorf("got %v\n%+v", got, findings)
			}
			if tc.message != "" && !slices.ContainsFunc(findings, func(f Finding) bool { return strings.Contains(f.Message, tc.message) }) {
				t.Errorf("no %q in %+v", tc.message, findings)
			}
			if tc.fix != "" && findings[0].Fix != tc.fix {
				t.Errorf("got the fix %q", findings[0].Fix)
			}
			if tc.not != "" && slices.ContainsFunc(findings, func(f Finding) bool { return strings.Contains(f.Message, tc.not) }) {
				t.Errorf("%q in %+v", tc.not, findings)
			}
		})
	}
}
