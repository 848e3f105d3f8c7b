package lint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// input decodes manifests of every kind that rules look at.
func input(t testing.TB, manifests ...string) Input {
	t.Helper()
	in := Input{Features: compile.AllFeatures(), Partial: true}
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(strings.Join(manifests, "\n---\n")), 4096)
	for {
		var raw struct{ Raw map[string]any }
		err := decoder.Decode(&raw.Raw)
		if errors.Is(err, io.EOF) {
			return in
		}
		if err != nil {
			t.Fatal(err)
		}
		if raw.Raw == nil {
			continue
		}
		add(t, &in, raw.Raw)
	}
}

func add(t testing.TB, in *Input, raw map[string]any) {
	t.Helper()
	kind, _ := raw["kind"].(string)
	switch kind {
	case "Namespace":
		in.Namespaces = append(in.Namespaces, into(t, raw, &corev1.Namespace{}))
	case "Pod":
		in.Pods = append(in.Pods, into(t, raw, &corev1.Pod{}))
	case "Node":
		in.Nodes = append(in.Nodes, into(t, raw, &corev1.Node{}))
	case "Service":
		in.Services = append(in.Services, into(t, raw, &corev1.Service{}))
	default:
		if slices.ContainsFunc(exposure.Kinds, func(k exposure.Kind) bool { return k.Name == kind }) {
			in.Exposing = append(in.Exposing, &unstructured.Unstructured{Object: raw})
			return
		}
		k := compile.KindNamed(kind)
		if k == nil {
			t.Fatalf("kind %q", kind)
		}
		in.Policies = append(in.Policies, into(t, raw, k.New()))
	}
}

func read(t testing.TB, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, elements...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// found returns the rules that have findings, without duplicates.
func found(in Input) []string {
	rules := map[string]bool{}
	for _, f := range Check(in) {
		rules[f.Rule] = true
	}
	return slices.Sorted(maps.Keys(rules))
}

// Each rule finds its bad example, and no rule finds anything else in an example.
func TestExamples(t *testing.T) {
	cluster := read(t, "cluster.yaml")
	if got := Check(input(t, cluster)); len(got) > 0 {
		t.Fatalf("findings in the cluster alone: %v", got)
	}
	for _, r := range Rules {
		if r.check == nil {
			continue // cmd/kubectl-netpol checks their examples
		}
		t.Run(r.ID, func(t *testing.T) {
			in := input(t, cluster, read(t, r.ID, "bad.yaml"))
			if got := found(in); !slices.Equal(got, []string{r.ID}) {
				t.Errorf("bad.yaml: got %v\n%+v", got, Check(in))
			}
			in = input(t, cluster, read(t, r.ID, "good.yaml"))
			if got := Check(in); len(got) > 0 {
				t.Errorf("good.yaml: got %+v", got)
			}
		})
	}
}

func into[O any](t testing.TB, raw map[string]any, o O) O {
	t.Helper()
	text, err := json.Marshal(raw)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, o); err != nil {
		t.Fatal(err)
	}
	return o
}

// A podSelector that has the labels of a workload itself is never meant.
func TestLabelsOfTheWorkload(t *testing.T) {
	own := workloads.Labels{Ref: workloads.Ref{Kind: workloads.Deployment, Namespace: "shop", Name: "db"}, Own: map[string]string{"tier": "data"}, Pods: map[string]string{"app": "db"}}
	for rule, spec := range map[string]string{
		"selects-no-pod":    "{podSelector: {matchLabels: {tier: data}}, ingress: [{ports: [{port: 5432}]}]}",
		"peer-selects-none": "{podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {matchLabels: {tier: data}}}]}]}",
	} {
		in := input(t, read(t, "cluster.yaml"), "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: shop, name: p}, spec: "+spec+"}")
		in.Workloads = []workloads.Labels{own}
		i := slices.IndexFunc(Check(in), func(f Finding) bool { return f.Rule == rule })
		if i < 0 {
			t.Fatalf("%s: got %+v", rule, Check(in))
		}
		if f := Check(in)[i]; f.Severity != Warning || !strings.Contains(f.Message, "shop/db itself has these labels") || f.Fix != "Write the labels of its pods: app=db." {
			t.Errorf("got %+v", f)
		}
	}
}

// The API server does not listen on the port of its Service.
func TestPortsBehindServices(t *testing.T) {
	const service = "{apiVersion: v1, kind: Service, metadata: {namespace: default, name: kubernetes}, spec: {clusterIP: 10.96.0.1, ports: [{name: https, port: 443}]}}"
	for egress, want := range map[string]bool{
		"{to: [{ipBlock: {cidr: 172.18.0.2/32}}], ports: [{port: 443}]}":                                     true,
		"{to: [{ipBlock: {cidr: 172.18.0.0/24}}], ports: [{port: 443}]}":                                     true,
		"{to: [{ipBlock: {cidr: 172.18.0.2/32}}], ports: [{port: 443}, {port: 6443}]}":                       false,
		"{to: [{ipBlock: {cidr: 172.18.0.2/32}}], ports: [{port: 443}]}, {ports: [{port: 6443}]}":            false,
		"{to: [{ipBlock: {cidr: 172.18.0.2/32}}], ports: [{port: 6443}]}":                                    false,
		"{to: [{ipBlock: {cidr: 172.18.0.3/32}}], ports: [{port: 443}]}":                                     false,
		"{to: [{ipBlock: {cidr: 172.18.0.0/24, except: [172.18.0.2/32]}}], ports: [{port: 443}]}":            false,
		"{to: [{ipBlock: {cidr: 0.0.0.0/0}}], ports: [{port: 443}]}":                                         false,
		"{to: [{ipBlock: {cidr: 172.18.0.2/32}}], ports: [{port: 443, protocol: UDP}]}":                      false,
		"{to: [{ipBlock: {cidr: 'fd00::2/128'}}], ports: [{port: 443}]}":                                     true,
		"{to: [{ipBlock: {cidr: 172.18.0.2/32}}], ports: [{port: 443, endPort: 6443}]}, {to: [], ports: []}": false,
	} {
		in := input(t, service, networkPolicy("p", "api", "policyTypes: [Egress]\negress: ["+egress+"]"))
		in.Behind = exposure.Backends{"default/kubernetes": {
			{Address: "172.18.0.2", PortName: "https", Protocol: corev1.ProtocolTCP, Port: 6443}, {Address: "fd00::2", PortName: "https", Protocol: corev1.ProtocolTCP, Port: 6443},
		}}
		got := slices.ContainsFunc(Check(in), func(f Finding) bool {
			return f.Rule == "service-port" && f.Severity == Warning && f.Fix == "Write port: 6443."
		})
		if got != want {
			t.Errorf("%s: got %v", egress, got)
		}
	}
}

// Twice as many namespaces or workloads need twice as many comparisons of selectors with labels, also
// where no selector matches.
func TestComparisonsAreLinear(t *testing.T) {
	for name, cluster := range map[string]func(i int) (pod, subject, peer string){
		"a namespace each": func(i int) (pod, subject, peer string) {
			return fmt.Sprintf("{namespace: n%d, name: p, labels: {app: web, part-of: shop}}", i), fmt.Sprintf("n%d", i), "{podSelector: {matchLabels: {app: wbe, part-of: shop}}}"
		},
		"one namespace": func(i int) (pod, subject, peer string) {
			return fmt.Sprintf("{namespace: one, name: p%d, labels: {app: web-%da, part-of: shop}}", i, i), "one", fmt.Sprintf("{podSelector: {matchLabels: {app: wbe-%da, part-of: shop}}}", i)
		},
		"pods of the next namespace": func(i int) (pod, subject, peer string) {
			return fmt.Sprintf("{namespace: n%d, name: p, labels: {app: web%da, part-of: shop}}", i, i), fmt.Sprintf("n%d", i), fmt.Sprintf("{podSelector: {matchLabels: {app: web%da, part-of: shop}}}", i+1)
		},
		"namespaces by name": func(i int) (pod, subject, peer string) {
			return fmt.Sprintf("{namespace: n%d, name: p, labels: {app: web, part-of: shop}}", i), fmt.Sprintf("n%d", i), fmt.Sprintf("{namespaceSelector: {matchLabels: {name: n%d}}, podSelector: {matchLabels: {app: web}}}", i+1)
		},
		"a policy without pods": func(i int) (pod, subject, peer string) {
			return fmt.Sprintf("{namespace: n%d, name: p, labels: {app: web%da}}", i, i), fmt.Sprintf("m%d", i), fmt.Sprintf("{namespaceSelector: {}, podSelector: {matchLabels: {app: web%dx}}}", i)
		},
	} {
		count := func(n int) int {
			var manifests []string
			for i := range n {
				pod, namespace, peer := cluster(i)
				manifests = append(manifests, "{apiVersion: v1, kind: Pod, metadata: "+pod+", spec: {containers: [{name: c}]}}",
					fmt.Sprintf("{apiVersion: v1, kind: Namespace, metadata: {name: n%d, labels: {kubernetes.io/metadata.name: n%d}}}", i, i),
					fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {namespace: %s, name: p%d}, spec: {podSelector: {matchLabels: {app: bew%d}}, ingress: [{from: [%s]}]}}", namespace, i, i, peer))
			}
			c := newCluster(input(t, manifests...))
			c.checkAll()
			return c.compared
		}
		if small, large := count(60), count(120); large > small*5/2 {
			t.Errorf("%s: %d comparisons for 60, %d for 120", name, small, large)
		}
	}
}
