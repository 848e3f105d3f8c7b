package edges

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

// report is what the prober prints, as far as the tests need it.
type report struct {
	Start   time.Time
	Targets []struct {
		Target                      string
		Expected                    string
		Attempts, Succeeded, Failed int
		Leaks                       int
		First                       *float64                        `json:"firstMilliseconds"`
		LongestGap                  float64                         `json:"longestGapMilliseconds"`
		Latency                     struct{ P50, P99, Max float64 } `json:"latencyMilliseconds"`
	}
}

// log returns the report that a prober has printed, without the line that says that it is
// not as expected: that comes from another stream, anywhere between the others.
func log(t *testing.T, namespace string, args ...string) string {
	t.Helper()
	var text strings.Builder
	for line := range strings.Lines(kubectl(t, append([]string{"-n", namespace, "logs"}, args...)...)) {
		if !strings.HasPrefix(line, "prober: ") {
			text.WriteString(line)
		}
	}
	return text.String()
}

// reports reads the reports of several probers.
func reports(t *testing.T, text string) []report {
	t.Helper()
	var all []report
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var r report
		if err := decoder.Decode(&r); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		all = append(all, r)
	}
}

// A field has a server and a denied pod on each node, and policies for them and for
// the probers. Probers are on both nodes.
type field struct {
	namespace string
	flags     []string // the targets
}

func newField(t *testing.T) field {
	t.Helper()
	f := field{namespace: newNamespace(t)}
	policy(t, f.namespace, "server", `{podSelector: {matchLabels: {app: server}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {app: prober}}}]}]}`)
	policy(t, f.namespace, "denied", `{podSelector: {matchLabels: {app: denied}}, policyTypes: [Ingress]}`)
	policy(t, f.namespace, "prober", `{podSelector: {matchLabels: {app: prober}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}`)
	var pods []pod
	for _, node := range []string{"n1", "n2"} {
		for _, app := range []string{"server", "denied"} {
			pods = append(pods, pod{app + "-" + node, node, "{edges: keep, app: " + app + "}", container(prober, "serve")})
		}
	}
	start(t, f.namespace, pods...)
	for _, p := range pods {
		kind := "-allowed"
		if strings.HasPrefix(p.name, "denied") {
			kind = "-denied"
		}
		if kind == "-denied" && !withAgent {
			continue
		}
		for _, address := range podAddresses(t, f.namespace, p.name) {
			for _, protocol := range []string{"tcp", "udp"} {
				f.flags = append(f.flags, kind, protocol+"://"+hostPort(address, 8080))
			}
		}
	}
	// Everything is in force once the pods with denied addresses cannot be reached.
	eventually(t, "policies in force", func() error {
		text := f.probe(t, "ready", func() { time.Sleep(2 * time.Second) })
		for _, r := range reports(t, text) {
			for _, target := range r.Targets {
				if target.Leaks > 0 || target.Expected == "allowed" && target.Succeeded == 0 {
					return fmt.Errorf("%+v", target)
				}
			}
		}
		return nil
	})
	return f
}

// probersKnown is how long probers wait until all nodes know them: what a new pod meets
// is not what is tested here.
const probersKnown = 5 * time.Second

// aftermath is how long probers go on after a disruption, which may end before its effect.
const aftermath = 3 * time.Second

// probe runs probers on both nodes while disrupt runs, and returns their reports.
func (f field) probe(t *testing.T, name string, disrupt func()) string {
	t.Helper()
	var pods []pod
	for _, node := range []string{"n1", "n2"} {
		pods = append(pods, pod{"prober-" + node, node, "{edges: keep, app: prober}",
			"  restartPolicy: Never\n" + container(prober, append([]string{"probe", "-delay=" + probersKnown.String()}, f.flags...)...)})
	}
	start(t, f.namespace, pods...)
	time.Sleep(probersKnown + 2*time.Second)
	disrupt()
	time.Sleep(aftermath)
	var text strings.Builder
	for _, p := range pods {
		kubectl(t, "-n", f.namespace, "exec", p.name, "--", "prober", "stop")
	}
	for _, p := range pods {
		eventually(t, "end of "+p.name, func() error {
			phase := kubectl(t, "-n", f.namespace, "get", "pod", p.name, "-o", "jsonpath={.status.phase}")
			if phase != "Succeeded" && phase != "Failed" {
				return fmt.Errorf("phase %s", phase)
			}
			return nil
		})
		text.WriteString(log(t, f.namespace, p.name))
	}
	kubectl(t, "-n", f.namespace, "delete", "pod", "-l", "app=prober", "--wait=true")
	keep(t, name+".json", text.String())
	return text.String()
}

// A figure sums up the targets of a protocol. The times are those of the worst one.
type figure struct {
	attempts, failed    int
	gap, p50, p99, most float64
}

// check fails for leaks and for allowed targets that were never reached, and logs the
// figures.
func check(t *testing.T, text string) {
	t.Helper()
	figures := make(map[string]*figure)
	leaks, denied := 0, 0
	for _, r := range reports(t, text) {
		for _, target := range r.Targets {
			if target.Expected == "denied" {
				leaks += target.Leaks
				denied += target.Attempts
				continue
			}
			if target.Succeeded == 0 {
				t.Errorf("%s was never reached in %d attempts", target.Target, target.Attempts)
			}
			protocol, _, _ := strings.Cut(target.Target, ":")
			f := figures[protocol]
			if f == nil {
				f = new(figure)
				figures[protocol] = f
			}
			f.attempts += target.Attempts
			f.failed += target.Failed
			f.gap, f.p50, f.p99, f.most = max(f.gap, target.LongestGap), max(f.p50, target.Latency.P50), max(f.p99, target.Latency.P99), max(f.most, target.Latency.Max)
		}
	}
	if leaks > 0 {
		t.Error("what policies deny got through")
	}
	t.Logf("%d of %d denied attempts got through", leaks, denied)
	for _, protocol := range []string{"tcp", "udp"} {
		if f := figures[protocol]; f != nil {
			t.Logf("%s: %d attempts, %d failed, longest gap %.0f ms, worst target's p50 %.1f ms, p99 %.1f ms, max %.0f ms",
				protocol, f.attempts, f.failed, f.gap, f.p50, f.p99, f.most)
		}
	}
}
