package suite

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

var update = flag.Bool("update", false, "write the golden files")

// open is a backend without policies, so everything connects. Applying the state of the
// scenario "broken" fails.
type open struct{}

func (open) Supports() netpol.Support {
	return netpol.Support{
		Protocols: []corev1.Protocol{corev1.ProtocolTCP}, Families: []corev1.IPFamily{corev1.IPv4Protocol},
		Features: []netpol.Feature{netpol.SilentDrops, netpol.OutsideHosts}, Nodes: 2, Immediate: true,
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

// slow is a backend on which the first attempts after a change time out.
type slow struct {
	open
	probes *int
}

func (slow) Supports() netpol.Support {
	s := open{}.Supports()
	s.Immediate = false
	return s
}

func (s slow) Apply(ctx context.Context, state *netpol.State) error {
	*s.probes = 0
	return s.open.Apply(ctx, state)
}

func (s slow) Probe(ctx context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	*s.probes++
	if *s.probes < 10 { // twenty milliseconds later each
		return slices.Repeat([]netpol.Outcome{netpol.TimedOut}, len(connections)), nil
	}
	return s.open.Probe(ctx, connections)
}

// Where the control takes long, there are no times in any report, but why.
func TestNoTimesOnABusyMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := report{backend: "slow", scenarios: []netpol.Scenario{{Name: "pods", Steps: []netpol.Step{{
			Change: func(s *netpol.State) { s.LabelPod("x/a", "a=b") },
		}}}}}
		r.summary = netpol.Runner{Backend: slow{probes: new(int)}}.PlayAll(t.Context(), r.scenarios, func(result netpol.Result) { r.results = append(r.results, result) })
		r.summary.Add(settled(time.Second))
		record := r.record()
		text, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}

		if record.Control == nil || record.Control.Checks != 5 || record.Control.P50 < 160 || len(record.Convergence) > 0 || strings.Contains(string(text), `"cut":2,"kept":0,"p50"`) {
			t.Errorf("the record is %s", text)
		}
		const why = "times of changes: – (the control's p99 is "
		if got := r.markdown(); !strings.Contains(got, why) || strings.Contains(got, "policy: right after") || strings.Contains(got, "gone after") {
			t.Errorf("the report is\n%s", got)
		}
		if got := fmt.Sprint(r.junit().Properties); !strings.Contains(got, why) {
			t.Errorf("the properties are %s", got)
		}
	})
}

// played has scenarios with every kind of outcome.
func played(t *testing.T) *report {
	small := netpol.Model{Namespaces: []string{"x"}, Pods: []string{"a", "b"}, Ports: []int32{80}, Protocols: []corev1.Protocol{corev1.ProtocolTCP}, Families: []corev1.IPFamily{corev1.IPv4Protocol}}
	twoFamilies, broken := small, small
	twoFamilies.Families = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	broken.Namespaces = []string{"broken"}
	steps := []netpol.Step{{}}
	r := &report{backend: "open", provider: "nothing v1", support: open{}.Supports(), scenarios: []netpol.Scenario{
		{Name: "nothing | none", Statements: []string{"NP-1", "NP-2"}, Model: small, Steps: steps},
		{Name: "deny", Model: small, Steps: []netpol.Step{{Want: func(r *netpol.Reachability) { r.ExpectAllIngress("x/a", false) }}}},
		{Name: "two families", Model: twoFamilies, Steps: steps},
		{Name: "administrators", Model: small, Needs: []netpol.Feature{netpol.AdminNetworkPolicies}, Steps: steps},
		{Name: "broken", Model: broken, Steps: steps},
		{Name: "never reached", Statements: []string{"NP-3"}, Model: small, Steps: steps},
	}}
	runner := netpol.Runner{Backend: open{}}
	r.summary = runner.PlayAll(t.Context(), r.scenarios[:5], func(result netpol.Result) {
		result.Took = 0
		r.results = append(r.results, result)
	})
	for _, took := range []time.Duration{200 * time.Millisecond, 700 * time.Millisecond} {
		r.summary.Add(settled(took))
	}
	r.results[2].Steps[0].Established = netpol.Established{Cut: 3, Kept: make([]netpol.Connection, 1)}
	fast := netpol.Times{P50: 412 * time.Microsecond, P95: 2 * time.Millisecond, P99: 12345 * time.Microsecond, Max: time.Second}
	r.latency = &netpol.Latency{Connections: 720, Free: fast, Selected: fast}
	r.summary.Took, r.summary.Slowest = 0, 0
	r.environment = netpol.Environment{Kubernetes: "v1.37.1", Kernels: []string{"6.18.44"}}
	r.ended = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	return r
}

// settled is the result of a scenario whose one change was effective after took. Two established
// connections were cut in half of that time.
func settled(took time.Duration) netpol.Result {
	return netpol.Result{Steps: []netpol.StepResult{{Change: netpol.ChangePolicy, Settled: took, Established: netpol.Established{Cut: 2, Took: took / 2}}}}
}

func TestReports(t *testing.T) {
	folder := t.TempDir()
	files := options{junit: filepath.Join(folder, "report.xml"), report: filepath.Join(folder, "report.md"), results: filepath.Join(folder, "results.json")}
	if err := played(t).write(files); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.xml", "report.md", "results.json"} {
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

// The command also writes both files if scenarios fail.
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
