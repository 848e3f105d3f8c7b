package suite

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

var update = flag.Bool("update", false, "write the golden files")

// open is a backend without policies: everything connects. It cannot apply the state of
// one scenario.
type open struct{}

func (open) Supports() netpol.Support {
	return netpol.Support{
		Protocols: []corev1.Protocol{corev1.ProtocolTCP}, Families: []corev1.IPFamily{corev1.IPv4Protocol},
		Features: []netpol.Feature{netpol.SilentDrops}, Nodes: 2, Immediate: true,
	}
}

func (open) Apply(_ context.Context, state *netpol.State) error {
	for i, pod := range state.Pods {
		if pod.Namespace == "broken" {
			return errors.New("the API server | does not answer")
		}
		state.Pods[i] = pod.DeepCopy()
		state.Pods[i].Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.1"}}
	}
	return nil
}

func (open) Probe(_ context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	outcomes := make([]netpol.Outcome, len(connections))
	for i := range outcomes {
		outcomes[i] = netpol.Connected
	}
	return outcomes, nil
}

func (open) Close() error { return nil }

// played has scenarios of every outcome.
func played(t *testing.T) *report {
	small := netpol.Model{Namespaces: []string{"x"}, Pods: []string{"a", "b"}, Ports: []int32{80}, Protocols: []corev1.Protocol{corev1.ProtocolTCP}, Families: []corev1.IPFamily{corev1.IPv4Protocol}}
	both, broken := small, small
	both.Families = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	broken.Namespaces = []string{"broken"}
	steps := []netpol.Step{{}}
	r := &report{backend: "open", support: open{}.Supports(), scenarios: []netpol.Scenario{
		{Name: "nothing | none", Statements: []string{"NP-1", "NP-2"}, Model: small, Steps: steps},
		{Name: "deny", Model: small, Steps: []netpol.Step{{Want: func(r *netpol.Reachability) { r.ExpectAllIngress("x/a", false) }}}},
		{Name: "two families", Model: both, Steps: steps},
		{Name: "administrators", Model: small, Needs: []netpol.Feature{netpol.AdminNetworkPolicies}, Steps: steps},
		{Name: "broken", Model: broken, Steps: steps},
		{Name: "never reached", Statements: []string{"NP-3"}, Model: small, Steps: steps},
	}}
	runner := netpol.Runner{Backend: open{}}
	r.summary = runner.PlayAll(t.Context(), r.scenarios[:5], func(result netpol.Result) {
		result.Took = 0
		r.results = append(r.results, result)
	})
	r.summary.Took, r.summary.Slowest = 0, 0
	return r
}

func TestReports(t *testing.T) {
	folder := t.TempDir()
	if err := played(t).write(filepath.Join(folder, "report.xml"), filepath.Join(folder, "report.md")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.xml", "report.md"} {
		t.Run(name, func(t *testing.T) {
			got, err := os.ReadFile(filepath.Join(folder, name))
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(golden); err != nil || string(got) != string(want) {
				t.Errorf("%v; got\n%s\nwant\n%s", err, got, want)
			}
		})
	}
}

// The command writes both files, also when scenarios fail.
func TestRunWritesReports(t *testing.T) {
	folder := t.TempDir()
	xml, markdown := filepath.Join(folder, "a.xml"), filepath.Join(folder, "a.md")
	command := Command{Default: "open", Backends: map[string]NewBackend{"open": func(context.Context) (netpol.Backend, error) { return open{}, nil }}}
	args := []string{"-run", "^default deny of ingress to a namespace$", "-junit", xml, "-report", markdown}
	if err := command.Run(t.Context(), &strings.Builder{}, args); !errors.Is(err, ErrFailed) {
		t.Fatalf("got %v, want %v", err, ErrFailed)
	}
	for name, want := range map[string]string{xml: `<testsuite name="netpol open" tests="1" failures="1" `, markdown: `\| default deny of ingress to a namespace \| NP-[^|]* \| 1 \| .*\*\*failed\*\* \|`} {
		got, err := os.ReadFile(name)
		if err != nil || !regexp.MustCompile(want).Match(got) {
			t.Errorf("%v; %s does not have %s:\n%s", err, name, want, got)
		}
	}
	args[3] = filepath.Join(folder, "no", "folder")
	if err := command.Run(t.Context(), &strings.Builder{}, args); err == nil || errors.Is(err, ErrFailed) {
		t.Errorf("got %v, want an error of the file", err)
	}
}
