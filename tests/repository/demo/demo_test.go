package main

import (
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

func TestPodAddressesAreInTheirNodesRange(t *testing.T) {
	pods, err := readPods()
	if err != nil {
		t.Fatal(err)
	}
	content, err := manifests.ReadFile("manifests/cluster/nodes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	prefixes := make(map[string][]netip.Prefix)
	for document := range strings.SplitSeq(string(content), "---\n") {
		node := &corev1.Node{}
		if err := yaml.UnmarshalStrict([]byte(document), node); err != nil {
			t.Fatal(err)
		}
		for _, cidr := range node.Spec.PodCIDRs {
			prefixes[node.Name] = append(prefixes[node.Name], netip.MustParsePrefix(cidr))
		}
	}
	if len(pods) != 9 {
		t.Errorf("%d pods, want 9", len(pods))
	}
	seen := make(map[string]bool)
	for _, pod := range pods {
		for _, ip := range pod.Status.PodIPs {
			if seen[ip.IP] {
				t.Errorf("%s is the address of two pods", ip.IP)
			}
			seen[ip.IP] = true
			inNode := func(prefix netip.Prefix) bool { return prefix.Contains(netip.MustParseAddr(ip.IP)) }
			if !slices.ContainsFunc(prefixes[pod.Spec.NodeName], inNode) {
				t.Errorf("%s/%s: %s is not in a network of %s", pod.Namespace, pod.Name, ip.IP, pod.Spec.NodeName)
			}
		}
	}
}

func TestStepsUseExistingPolicies(t *testing.T) {
	applied := make(map[string]bool)
	for _, step := range steps {
		for _, name := range step.apply {
			content, err := manifests.ReadFile(policyFile(name))
			if err != nil {
				t.Fatal(err)
			}
			if got := policyNames(t, content); !slices.Equal(got, []string{name}) {
				t.Errorf("%s holds the policies %q", policyFile(name), got)
			}
			applied[name] = true
		}
		for _, name := range step.remove {
			if !applied[name] {
				t.Errorf("%q removes %s, which is not applied", step.title, name)
			}
			delete(applied, name)
		}
	}
	if len(applied) != 0 {
		t.Errorf("at the end %v are left", applied)
	}
}

// policyNames returns the names of the policies of a manifest, of whatever kind.
func policyNames(t *testing.T, content []byte) []string {
	t.Helper()
	var names []string
	for d, err := range manifestyaml.Documents(content) {
		if err != nil {
			t.Fatal(err)
		}
		var policy metav1.PartialObjectMetadata
		text, err := d.Map()
		if err == nil {
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(text, &policy)
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, policy.Name)
	}
	return names
}

// TestDemo runs the whole demo.
func TestDemo(t *testing.T) {
	labtest.Need(t)
	binary, err := lab.BuildAgent(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	tool := buildTool(t)
	var out strings.Builder
	if err := run(t.Context(), &out, binary, tool, false); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
	if err := showTool(t.Context(), &out, tool, "../../../examples", false); err != nil {
		t.Error(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines > 120 {
		t.Errorf("%d lines are shown without -v, want at most 120:\n%s", lines, &out)
	}
}

// buildTool returns the path of kubectl-netpol.
func buildTool(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "kubectl-netpol")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../../../cmd/kubectl-netpol", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return binary
}

// TestTool runs the commands of the tool.
func TestTool(t *testing.T) {
	binary := buildTool(t)
	var first, second strings.Builder
	for _, out := range []*strings.Builder{&first, &second} {
		if err := showTool(t.Context(), out, binary, "../../../examples", true); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if first.String() != second.String() {
		t.Errorf("two runs differ:\n%s\n%s", &first, &second)
	}
	for _, c := range toolCommands {
		if !strings.Contains(first.String(), "\n   $ kubectl netpol "+c.args+"\n   ") {
			t.Errorf("%s is not shown, or has no output:\n%s", c.args, &first)
		}
	}
	t.Run("another exit code", func(t *testing.T) {
		_, _, err := toolCommand{args: "check -f online-shop", code: 1}.run(t.Context(), binary, "../../../examples")
		if !errors.Is(err, errDiffers) {
			t.Errorf("got %v", err)
		}
	})
}
