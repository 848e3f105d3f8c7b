package lint

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
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

// Without a ServiceCIDR, the addresses of known Services say what their range has.
func TestBlocksBetweenServices(t *testing.T) {
	services := []*corev1.Service{
		serviceAt("default", "kubernetes", "10.96.0.1", "fd96::1"), serviceAt("x", "a", "10.96.4.7"), serviceAt("x", "b", "10.98.0.9"),
	}
	for block, want := range map[string]string{
		"10.96.0.0/16": "is a range of Services: its first address is that of Service default/kubernetes",
		"10.96.0.0/12": "is a range of Services: its first address is that of Service default/kubernetes",
		"fd96::/108":   "is a range of Services",
		"10.97.0.0/16": "is in the range of Services, between the addresses of default/kubernetes and x/b",
		"10.96.4.7/32": "is the address of Service x/a",
		"10.98.0.0/16": "",
		"10.96.0.0/11": "",
		"10.0.0.0/8":   "",
		"0.0.0.0/0":    "",
		"fd96::/64":    "",
		"192.0.2.0/24": "",
	} {
		t.Run(block, func(t *testing.T) {
			p := &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
				Spec: networkingv1.NetworkPolicySpec{
					PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
					Egress:      []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: block}}}}},
				},
			}
			var got string
			for _, f := range Check(Input{Features: compile.AllFeatures(), Services: services, Policies: []compile.Object{p}}) {
				if f.Rule == "service-address" {
					got = f.Message
				}
			}
			if (got == "") != (want == "") || !strings.Contains(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	in := Input{Services: services, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.100.0.0/16")}}
	if spans := (&cluster{Input: in}).serviceSpans(); spans[true] != nil || spans[false] == nil {
		t.Errorf("a ServiceCIDR says it better: got %v", spans)
	}
}

func serviceAt(namespace, name string, addrs ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: addrs[0], ClusterIPs: addrs}}
}
