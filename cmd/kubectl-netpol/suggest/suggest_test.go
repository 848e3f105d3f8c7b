package suggest

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

var update = flag.Bool("update", false, "write the suggestions of testdata")

// read returns the input from manifests and records.
func read(t *testing.T, manifests, records string) Input {
	t.Helper()
	objects, err := clusterfiles.Read([]string{clusterfiles.Stdin}, strings.NewReader(manifests), clusterfiles.Options{Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	in := Input{
		Cluster: clusterstate.Input{
			Features: compile.AllFeatures(), Namespaces: objects.Namespaces, Pods: objects.Pods, Nodes: objects.Nodes, Policies: objects.Policies,
		},
		Selectors: objects.Selectors, Namespace: "shop",
	}
	if err := flows.Decode(strings.NewReader(records), func(r *flows.Record) error {
		in.Records = append(in.Records, *r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return in
}

// record returns the line of a flow. An end is "namespace/pod", an address, or both
// separated by a space. more are further fields of the record.
func record(from, to, protocol string, port int, more string) string {
	end := func(s string) string {
		pod, addr, hasAddr := strings.Cut(s, " ")
		if !strings.Contains(pod, "/") {
			return `{"address":"` + pod + `"}`
		}
		if !hasAddr {
			addr = "10.9.9.9"
		}
		namespace, name, _ := strings.Cut(pod, "/")
		return `{"namespace":"` + namespace + `","pod":"` + name + `","address":"` + addr + `"}`
	}
	if more == "" {
		more = `"verdict":"allow","count":1`
	}
	return `{"type":"flow","node":"n1","source":` + end(from) + `,"destination":` + end(to) + `,"protocol":"` + protocol + `","port":` + itoa(port) +
		`,"direction":"egress","tier":"default","reason":"not selected","first":"2026-01-02T03:00:00Z","last":"2026-01-02T03:00:00Z",` + more + "}\n"
}

// agentLine returns the line of an agent that leaves out late packets since its start.
func agentLine(started string) string {
	return `{"type":"agent","node":"n1","time":"2026-01-02T03:04:05Z","started":"` + started + `","cursor":"1-2","flows":2,"maxFlows":4096,"evicted":0,"lost":0,"withheld":0,"late":3}` + "\n"
}

func itoa(n int) string { return strconv.Itoa(n) }

// shown renders the policies and the notes of a suggestion.
func shown(t *testing.T, s *Suggestion) string {
	t.Helper()
	text, err := s.YAML()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range s.Uncovered {
		text += "## not covered: " + u.Flow + ": " + u.Reason + "\n"
	}
	for _, n := range s.Notes {
		text += "## " + n + "\n"
	}
	return text + fmt.Sprintf("## flows: %d, denied: %d, audited: %v\n", s.Flows, s.Denied, s.Audited)
}

const (
	web1    = "shop/web-7d4f9c8b6d-bcdfg 10.0.1.2"
	web2    = "shop/web-7d4f9c8b6d-x2x4x 10.0.2.2"
	api     = "shop/api-5b5b5b5b5b-bbbbb 10.0.2.3"
	db      = "shop/db-0 10.0.2.4"
	coredns = "kube-system/coredns-66bc5c9577-2bbbb 10.0.1.4"
)

const defaultDeny = `
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: default-deny, annotations: {kube-network-policies.x-k8s.io/enforcement: audit}}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
`

// TestSuggestions compares suggestions with testdata; go test ./cmd/kubectl-netpol/suggest -update
// writes it.
func TestSuggestions(t *testing.T) {
	for _, tc := range []struct {
		name      string
		manifests string // in addition to cluster.yaml
		records   []string
		change    func(in *Input)
	}{
		{name: "two-pods-of-a-workload-are-one-peer", records: []string{
			record(web1, api, "TCP", 8000, ""), record(web2, api, "TCP", 8000, `"verdict":"allow","count":7`),
		}},
		{name: "ports-of-one-peer-are-one-rule", records: []string{
			record(web1, api, "TCP", 8000, ""), record(web1, api, "TCP", 9090, ""), record(web1, api, "UDP", 7000, ""),
			record("monitoring/prometheus-0 10.0.1.3", api, "TCP", 9090, ""), record("monitoring/prometheus-0 10.0.1.3", db, "TCP", 9187, ""),
		}},
		{name: "peers-of-the-same-ports-are-one-rule", records: []string{
			record(web1, db, "TCP", 5432, ""), record(api, db, "TCP", 5432, ""),
		}},
		{name: "dns-by-udp-is-dns-by-tcp", records: []string{record(web1, coredns, "UDP", 53, "")}},
		{name: "dns-by-both", records: []string{record(web1, coredns, "TCP", 53, ""), record(web1, coredns, "UDP", 53, "")}},
		{name: "outside", records: []string{
			record(web1, "203.0.113.9", "TCP", 443, ""), record(web1, "203.0.113.80", "TCP", 443, ""),
			record(api, "203.0.113.9", "TCP", 443, ""), record("198.51.100.7", web1, "TCP", 8080, ""), record("2001:db8::7", web1, "TCP", 8080, ""),
			strings.Replace(record(web1, "192.0.2.1", "TCP", 443, ""), `"192.0.2.1"`, `"192.0.2.1","names":["b.example","a.example\n- injected: true"]`, 1),
		}, change: func(in *Input) {
			in.Blocks = []Block{block(t, "partner=203.0.113.0/24"), block(t, "billing=203.0.113.64/26")}
		}},
		{name: "blocks-of-several-addresses", records: []string{
			strings.Replace(record(web1, "192.0.2.1", "TCP", 443, ""), `"192.0.2.1"`, `"192.0.2.1","block":"192.0.2.0/24"`, 1),
			strings.Replace(record(web1, "203.0.113.9", "TCP", 443, ""), `"203.0.113.9"`, `"203.0.113.9","block":"203.0.113.0/24"`, 1),
			strings.Replace(record(web1, "198.51.100.7", "TCP", 443, `"verdict":"allow","count":1,"audit":{"verdict":"deny"}`), `"198.51.100.7"`, `"198.51.100.7","block":"0.0.0.0/0"`, 1),
		}, change: func(in *Input) { in.Blocks = []Block{block(t, "partner=203.0.113.0/24")} }},
		{name: "services-without-a-selector", records: []string{record(web1, "172.18.0.2", "TCP", 6443, ""), record(web1, "172.18.0.2", "TCP", 10250, ""), record(api, "172.18.0.3", "TCP", 6443, "")},
			change: func(in *Input) {
				in.Behind = exposure.Backends{"default/kubernetes": {{Address: "172.18.0.2", Protocol: "TCP", Port: 6443}, {Address: "172.18.0.3", Protocol: "TCP", Port: 6443}}}
			}},
		{name: "addresses-of-services", records: []string{record(web1, "10.96.0.9", "TCP", 80, ""), record(web1, "10.97.0.1", "TCP", 80, ""), record(web1, "203.0.113.9", "TCP", 443, "")},
			change: func(in *Input) {
				gone := &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.9"}}
				in.Translated = reachability.NewTranslated([]*corev1.Service{gone}, []netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")})
			}},
		{name: "nodes", records: []string{record("192.168.0.2", web1, "TCP", 8080, ""), record("192.168.0.1", web1, "TCP", 8080, "")}},
		{name: "pods-that-are-gone", records: []string{
			record("shop/web-6c6c6c6c6c-zzzzz 10.0.1.77", api, "TCP", 8000, ""), record("shop/backup-28930000-bcdfg 10.0.1.78", db, "TCP", 5432, ""),
			record("shop/db-1 10.0.1.79", db, "TCP", 5432, ""), record("shop/unknown-1 10.0.1.80", db, "TCP", 5432, ""),
		}},
		{name: "what-cannot-be-allowed", manifests: `
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: monitoring, name: closed, annotations: {kube-network-policies.x-k8s.io/enforcement: audit}}
spec: {podSelector: {}, policyTypes: [Ingress]}
`, records: []string{
			record(web1, api, "TCP", 8000, ""), record(web1, api, "ICMP", 0, ""), record(web1, api, "TCP", 0, ""), record(web1, api, "SCTP", 9, ""),
			record("shop/debug 10.0.1.9", api, "TCP", 8000, ""), record(api, "monitoring/prometheus-0 10.0.1.3", "TCP", 9090, ""),
			record("10.0.2.99", web1, "TCP", 8080, ""), record("10.0.1.3", web1, "TCP", 8080, ""),
			record(web1, "10.0.1.1", "TCP", 10250, `"verdict":"allow","reason":"own node","count":1`),
		}, change: func(in *Input) { in.Cluster.Features.SCTP = false }},
		{name: "denied-flows-do-not-count", records: []string{
			record(web1, api, "TCP", 8000, `"verdict":"allow","audit":{"verdict":"deny"},"count":3`), record(web1, db, "TCP", 5432, `"verdict":"deny","count":4`),
		}},
		{name: "denied-flows-count-if-asked", records: []string{record(web1, db, "TCP", 5432, `"verdict":"deny","count":4`)}, change: func(in *Input) { in.Denied = true }},
		{name: "late-packets-of-earlier-agents", records: []string{
			record(web1, db, "TCP", 5432, ""), record(db, web1, "TCP", 40000, `"verdict":"allow","audit":{"verdict":"deny"},"count":9`),
			record(db, web1, "TCP", 50000, `"verdict":"deny","count":9`), record(db, "10.0.1.2", "TCP", 40002, ""), record(db, web1, "UDP", 40000, ""),
			record(db, web1, "TCP", 9000, ""), record(db, web2, "TCP", 40000, ""), record(web1, db, "TCP", 40000, ""),
			strings.Replace(record("203.0.113.7", web1, "TCP", 8080, ""), `"203.0.113.7"`, `"203.0.113.7","block":"203.0.113.0/24"`, 1),
			record(web1, "203.0.113.99", "TCP", 40000, ""), record(web1, "198.51.100.7", "TCP", 40000, ""),
		}},
		{name: "high-ports-of-agents-that-leave-out-late-packets", records: []string{
			agentLine("2026-01-02T02:00:00Z"), record(web1, db, "TCP", 5432, ""), record(db, web1, "TCP", 40000, ""),
		}},
		{name: "high-ports-before-an-upgrade", records: []string{
			agentLine("2026-01-02T03:00:01Z"), record(web1, db, "TCP", 5432, ""), record(db, web1, "TCP", 40000, ""),
		}},
		{name: "other-policies-are-added-to", manifests: defaultDeny + `
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: suggested-web}
spec: {podSelector: {matchLabels: {app: web}}, egress: [{to: [{podSelector: {matchLabels: {app: api}}}]}], policyTypes: [Egress]}
`, records: []string{record(web1, api, "TCP", 8000, ""), record(web1, db, "TCP", 5432, "")}},
		{name: "audited-policies-are-not-counted-on", manifests: defaultDeny + `
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: api, annotations: {kube-network-policies.x-k8s.io/enforcement: audit}}
spec: {podSelector: {matchLabels: {app: api}}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}]}]}
`, records: []string{record(web1, api, "TCP", 8000, "")}},
		{name: "enforced", records: []string{record(web1, api, "TCP", 8000, "")}, change: func(in *Input) { in.Enforced = true }},
		{name: "without-the-selectors-of-workloads", records: []string{record("monitoring/prometheus-0 10.0.1.3", web1, "TCP", 8080, "")},
			change: func(in *Input) { in.Selectors = nil }},
		{name: "labels-that-do-not-tell-apart", manifests: `
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: canary, labels: {app: web, version: v4}}
spec: {nodeName: n1, containers: [{name: c, image: i, ports: [{name: http, containerPort: 8081}]}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.50}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: copy, labels: {app: api}}
spec: {nodeName: n1, containers: [{name: c, image: i, ports: [{name: http, containerPort: 8001}]}]}
status: {phase: Running, podIPs: [{ip: 10.0.1.51}]}
`, records: []string{record(web1, api, "TCP", 8000, ""), record(api, web1, "TCP", 8080, "")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			manifests, err := os.ReadFile("testdata/cluster.yaml")
			if err != nil {
				t.Fatal(err)
			}
			in := read(t, string(manifests)+tc.manifests, strings.Join(tc.records, ""))
			if tc.change != nil {
				tc.change(&in)
			}
			s, err := Make(in)
			if err != nil {
				t.Fatal(err)
			}
			written(t, s)
			got, golden := shown(t, s), filepath.Join("testdata", tc.name+".yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("suggestion (-want +got):\n%s", diff)
			}
			slices.Reverse(in.Records)

			if reordered, err := Make(in); err != nil || shown(t, reordered) != got {
				t.Errorf("records in another order: %v\n%s", err, shown(t, reordered))
			}
		})
	}
}

func block(t *testing.T, s string) Block {
	t.Helper()
	b, err := ParseBlock(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// written compares the manifests of a suggestion with its policies. Reading them also
// validates them like an API server.
func written(t *testing.T, s *Suggestion) {
	t.Helper()
	text, err := s.YAML()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := clusterfiles.Read([]string{clusterfiles.Stdin}, strings.NewReader(text), clusterfiles.Options{Namespace: "shop"})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	got := map[string]networkingv1.NetworkPolicySpec{}
	for _, o := range objects.Policies {
		p := o.(*networkingv1.NetworkPolicy)
		if compile.Audits(p, nil) != (s.Policies[0].Annotations != nil) || p.Labels[managedBy] != manager {
			t.Errorf("%s: annotations %v, labels %v", p.Name, p.Annotations, p.Labels)
		}
		got[p.Name] = p.Spec
	}
	want := map[string]networkingv1.NetworkPolicySpec{}
	for _, p := range s.Policies {
		want[p.Name] = p.Spec
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("policies (-want +read):\n%s", diff)
	}
}

// TestNoSuggestion: an error says what is missing.
func TestNoSuggestion(t *testing.T) {
	manifests, err := os.ReadFile("testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const agent = `{"type":"agent","node":"n1","time":"2026-01-02T03:04:05Z","cursor":"1-2","flows":0,"maxFlows":4096,"evicted":0,"lost":0,"withheld":0}` + "\n"
	otherNamespace := record("monitoring/prometheus-0", coredns, "UDP", 53, "")
	for _, tc := range []struct {
		name, manifests, records, namespace, want string
	}{
		{"no records", "", "", "shop", "there are no records"},
		{"no flows", "", agent, "shop", "no flow from or to a pod of namespace shop is recorded (flows of all: 0, nodes: 1): only packets of pods that policies select are recorded, and the namespace has no NetworkPolicy"},
		{"a policy to begin with", "", agent, "shop", "  name: default-deny\n  labels:\n    app.kubernetes.io/managed-by: kubectl-netpol\n  annotations:\n    kube-network-policies.x-k8s.io/enforcement: audit\n"},
		{"flows of others", defaultDeny, agent + otherNamespace, "shop", "is recorded (flows of all: 1, nodes: 1): only packets of pods that policies select are recorded, and none"},
		{"denied flows only", "", record(web1, db, "TCP", 5432, `"verdict":"deny","count":4`), "shop", "all recorded flows of namespace shop (1) were denied"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := read(t, string(manifests)+tc.manifests, tc.records)
			in.Namespace = tc.namespace
			s, err := Make(in)
			if err == nil || s != nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v, want %s", s, err, tc.want)
			}
		})
	}
}

// TestTheLastVerdictOfEachNodeCounts: a flow is denied if some node's last verdict denies
// it, and its packets are not added up over nodes.
func TestTheLastVerdictOfEachNodeCounts(t *testing.T) {
	recordOf := func(node, time, verdict string, count int) string {
		line := record(web1, api, "TCP", 8000, fmt.Sprintf(`"verdict":%q,"count":%d`, verdict, count))
		return strings.NewReplacer(`"node":"n1"`, `"node":"`+node+`"`, "03:00:00Z", time).Replace(line)
	}
	for _, tc := range []struct {
		name    string
		records []string
		denied  bool
		count   uint64
	}{
		{"denied, then allowed", []string{recordOf("n1", "03:00:00Z", "deny", 2), recordOf("n1", "03:01:00Z", "allow", 3)}, false, 5},
		{"allowed, then denied", []string{recordOf("n1", "03:01:00Z", "deny", 2), recordOf("n1", "03:00:00Z", "allow", 3)}, true, 5},
		{"allowed by one node, denied by the other", []string{recordOf("n1", "03:01:00Z", "allow", 2), recordOf("n2", "03:00:00Z", "deny", 2)}, true, 2},
		{"both nodes count the same packets", []string{recordOf("n1", "03:01:00Z", "allow", 4), recordOf("n2", "03:00:00Z", "allow", 3)}, false, 4},
		{"a log has a flow again and again", []string{recordOf("n1", "03:01:00Z", "allow", 4), recordOf("n1", "03:02:00Z", "allow", 9)}, false, 9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := read(t, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}", strings.Join(tc.records, ""))
			for range 2 {
				all := collect(&in)
				if len(all) != 1 || all[0].denied != tc.denied || all[0].count != tc.count {
					t.Errorf("got %+v", all[0])
				}
				slices.Reverse(in.Records)
			}
		})
	}
}

func TestManyAddressesAreWorthABlock(t *testing.T) {
	manifests, err := os.ReadFile("testdata/cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var records string
	for i := range mostAddresses + 1 {
		records += record(web1, fmt.Sprint("203.0.113.", i+1), "TCP", 443, "")
	}
	for name, blocks := range map[string][]Block{"17 addresses": nil, "": {block(t, "partner=203.0.113.0/24")}} {
		in := read(t, string(manifests), records)
		in.Blocks = blocks
		s, err := Make(in)
		if err != nil {
			t.Fatal(err)
		}
		if noted := slices.ContainsFunc(s.Notes, func(n string) bool { return strings.Contains(n, "17 addresses") }); noted != (name != "") {
			t.Errorf("with blocks %v: %q", blocks, s.Notes)
		}
	}
}

func TestParseBlock(t *testing.T) {
	for s, want := range map[string]string{
		"office=203.0.113.0/24":      "office 203.0.113.0/24",
		"v6=2001:db8::/32":           "v6 2001:db8::/32",
		"203.0.113.0/24":             "203.0.113.0/24: must be NAME=CIDR",
		"=203.0.113.0/24":            "=203.0.113.0/24: must be NAME=CIDR",
		"office=203.0.113.0":         `office=203.0.113.0: netip.ParsePrefix("203.0.113.0"): no '/'`,
		"office=203.0.113.9/24":      "office=203.0.113.9/24: 203.0.113.9 is an address within 203.0.113.0/24: name the block",
		"office=::ffff:10.0.0.0/104": "office=::ffff:10.0.0.0/104: write the block as one of IPv4",
	} {
		t.Run(s, func(t *testing.T) {
			b, err := ParseBlock(s)
			if got := b.String(); err == nil && got != want || err != nil && err.Error() != want {
				t.Errorf("got %s, %v, want %s", got, err, want)
			}
		})
	}
}
