package intent

import (
	"strings"
	"testing"
)

// head begins a document with one expectation, which is on line 4.
const head = "apiVersion: kube-network-policies.x-k8s.io/v1alpha1\nkind: Expectations\nexpectations:\n"

func TestParse(t *testing.T) {
	expectations, err := Parse("intent.yaml", []byte(head+`
- from: ingress/deploy/gateway
  to: shop/web
  port: http
  expect: allow
  why: customers
- from: {namespaceSelector: {matchLabels: {team: ops}}, podSelector: {matchLabels: {app: probe}}}
  to: {namespace: shop, except: [shop/sts/db, shop/api]}
  port: 8080
  protocol: udp
  expect: deny
- {from: {namespaceSelector: {}}, to: "2001:db8::1", port: "443", expect: deny}
---
---
{"apiVersion": "kube-network-policies.x-k8s.io/v1alpha1", "kind": "Expectations", "expectations": [
  {"from": "::ffff:10.0.0.1", "to": "a/b", "protocol": "ICMP", "expect": "allow"}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, e := range expectations {
		got.WriteString(place(e.File, e.Line) + " " + e.Field + " " + e.String())
		if e.Allow {
			got.WriteString(" allow")
		}
		if e.Why != "" {
			got.WriteString(" why " + e.Why)
		}
		got.WriteString("\n")
	}

	want := `intent.yaml:5 expectations[0] ingress/deploy/gateway -> shop/web, TCP http allow why customers
intent.yaml:10 expectations[1] pods with app=probe of namespaces with team=ops -> pods of namespace shop except shop/sts/db and shop/api, UDP 8080
intent.yaml:15 expectations[2] pods of all namespaces -> 2001:db8::1, TCP 443
intent.yaml:19 expectations[0] ::ffff:10.0.0.1 -> a/b, ICMP allow
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}

func TestParseRejects(t *testing.T) {
	item := func(fields string) string { return head + "- {" + fields + "}\n" }
	const sides = "from: a/b, to: a/c, "
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "intent.yaml: there are no expectations"},
		{"not YAML", "{", "intent.yaml:2: did not find"},
		{"text", "expectations", `intent.yaml:1: "expectations" is text`},
		{"another kind", "apiVersion: v1\nkind: Pod\n", "intent.yaml:1: v1 Pod: must be kube-network-policies.x-k8s.io/v1alpha1 Expectations"},
		{"no kind", "expectations: []\n", "intent.yaml:1: (missing) (missing): must be"},
		{"an empty list", head[:len(head)-1] + " []\n", "intent.yaml:3: expectations: the list is empty"},
		{"no list", head, "intent.yaml:3: expectations: the list is empty"},
		{"an unknown field", item(sides + "port: 1,\n  expext: deny"), `intent.yaml:5: unknown field "expectations[0].expext"`},
		{"an unknown field at the top", head + "- {" + sides + "port: 1, expect: deny}\nmetadata: {}\n", `intent.yaml:5: unknown field "metadata"`},
		{"a doubled field", item(sides + "port: 1, expect: deny,\n  port: 2"), `intent.yaml:5: `},
		{"no from", item("to: a/b, port: 1, expect: deny"), "intent.yaml:4: expectations[0].from: is missing"},
		{"null", item("from: ~, to: a/b, port: 1, expect: deny"), "intent.yaml:4: expectations[0].from: is missing"},
		{"no port", item(sides + "expect: deny"), "intent.yaml:4: expectations[0]: port is missing"},
		{"port 0", item(sides + "port: 0, expect: deny"), `intent.yaml:4: expectations[0]: port "0": must be in 1-65535`},
		{"a port too high", item(sides + "port: 65536, expect: deny"), `port "65536": must be in 1-65535`},
		{"a fraction", item(sides + "port: 1.5, expect: deny"), "intent.yaml:4: expectations[0].port: 1.5: must be a number or the name"},
		{"a list of ports", item(sides + "port: [1], expect: deny"), "expectations[0].port: [1]: must be a number or the name"},
		{"a name that is none", item(sides + "port: HTTP_1, expect: deny"), `port "HTTP_1": neither a number nor the name of a port`},
		{"a protocol", item(sides + "port: 1, protocol: GRE, expect: deny"), `protocol "GRE": must be TCP, UDP, SCTP or ICMP`},
		{"ICMP with a port", item(sides + "port: 1, protocol: ICMP, expect: deny"), `port "1": ICMP has no ports`},
		{"no expect", item(sides + "port: 1"), "intent.yaml:4: expectations[0].expect: is missing: allow or deny"},
		{"another expect", item(sides + "port: 1,\n  expect: Allow"), `intent.yaml:5: expectations[0].expect: "Allow": must be allow or deny`},
		{"a name without a namespace", item("from: web,\n  to: a/b, port: 1, expect: deny"), `intent.yaml:4: expectations[0].from: "web": must be namespace/pod`},
		{"an empty part", item("from: shop//web, to: a/b, port: 1, expect: deny"), `"shop//web": must be NAME, KIND/NAME`},
		{"a kind", item("from: a/b,\n  to: shop/ing/web, port: 1, expect: deny"), `intent.yaml:5: expectations[0].to: "shop/ing/web": "ing" is not a kind of workload`},
		{"a number", item("from: 7, to: a/b, port: 1, expect: deny"), "expectations[0].from: 7: must be a name, or a mapping"},
		{"no namespace", item("from: {podSelector: {}}, to: a/b, port: 1, expect: deny"), "expectations[0].from: namespace or namespaceSelector is missing"},
		{"two namespaces", item("from: {namespace: a, namespaceSelector: {}}, to: a/b, port: 1, expect: deny"), "has both namespace and namespaceSelector"},
		{"an unknown field of a side", item("from: a/b, to: {namespace: a,\n  podSelektor: {}}, port: 1, expect: deny"), "intent.yaml:5: expectations[0].to.podSelektor: unknown field"},
		{"an unknown field of a selector", item("from: a/b, to: {namespace: a,\n  podSelector: {\n  app: b}}, port: 1, expect: deny"), "intent.yaml:6: expectations[0].to.podSelector.app: unknown field"},
		{"a list as namespace", item("from: {namespace: [a]}, to: a/b, port: 1, expect: deny"), "expectations[0].from: namespace: got array, want string"},
		{"an operator", item("from: a/b, to: {namespaceSelector: {matchExpressions: [{key: a, operator: Is}]}}, port: 1, expect: deny"), `expectations[0].to.namespaceSelector: "Is" is not a valid label selector operator`},
		{"an exception", item("from: a/b, to: {namespace: a, except: [a/c,\n  web]}, port: 1, expect: deny"), `intent.yaml:5: expectations[0].to.except[1]: "web": must be`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("intent.yaml", []byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// All faults of a file are reported, not only the first.
func TestParseReportsAllFaults(t *testing.T) {
	_, err := Parse("intent.yaml", []byte(head+"- {from: a, to: b, port: 0, expect: x}\n- {from: a/b, to: a/c, port: 1}\n"))
	if err == nil || strings.Count(err.Error(), "intent.yaml:4: ") != 4 || strings.Count(err.Error(), "intent.yaml:5: ") != 1 {
		t.Errorf("got %v", err)
	}
}

// Any input gives expectations that can be printed, or an error that names the file.
func FuzzParse(f *testing.F) {
	f.Add(head + "- {from: a/b, to: {namespace: a, except: [a/sts/c]}, port: http, expect: deny}\n")
	f.Add(head + "- from: {namespaceSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}}\n  to: 10.0.0.1\n  port: 80\n  expect: allow\n")
	f.Add(head + "- &a {from: *a, to: [], port: {}, expect: ~}\n")
	f.Fuzz(func(t *testing.T, text string) {
		expectations, err := Parse("intent.yaml", []byte(text))
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if strings.HasPrefix(line, "intent.yaml") {
					return
				}
			}
			t.Fatalf("the error does not name the file: %v", err)
		}
		if len(expectations) == 0 {
			t.Fatal("neither expectations nor an error")
		}
		for _, e := range expectations {
			if e.String() == "" || e.Line < 1 || e.File != "intent.yaml" {
				t.Fatalf("got %+v", e)
			}
		}
	})
}
