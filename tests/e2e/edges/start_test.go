package edges

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startedAtOnce is how many pods start together.
func startedAtOnce(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv("EDGES_PODS"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Pods whose init containers connect at once, in groups that start one after the other:
// without the agent, those that no policy selects, those that a policy selects, those
// that connect to a server which admits them by their labels, so that its node must know
// them, and those that it does not admit. Nothing may get through of the last ones. The
// figures of the first connections are logged, all of the same run.
func TestInitContainersConnectAtOnce(t *testing.T) {
	namespace := newNamespace(t)
	start(t, namespace,
		pod{"open", "n1", "{app: server, admits: all}", container(prober, "serve")},
		pod{"guarded", "n1", "{app: server, admits: some}", container(prober, "serve")})
	policy(t, namespace, "guarded", `{podSelector: {matchLabels: {admits: some}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {group: admitted}}}]}]}`)
	policy(t, namespace, "starters", `{podSelector: {matchLabels: {group: selected}}, policyTypes: [Ingress, Egress], egress: [{to: [{podSelector: {matchLabels: {app: server}}}]}]}`)

	startAtOnce(t, namespace, "free", "open", "allowed")
	startAtOnce(t, namespace, "selected", "open", "allowed")
	startAtOnce(t, namespace, "admitted", "guarded", "allowed")
	if !withAgent {
		return
	}
	startAtOnce(t, namespace, "strange", "guarded", "denied")
	removeAgent(t)
	defer installAgent(t)
	startAtOnce(t, namespace, "without", "open", "allowed")
}

// startAtOnce starts pods of a group, half of them on the server's node, waits until
// their probers have ended, and deletes them.
func startAtOnce(t *testing.T, namespace, group, server, expected string) {
	t.Helper()
	count := startedAtOnce(t)
	args := []string{"probe", "-interval=250ms", "-duration=2s", "-timeout=20s"}
	for _, address := range podAddresses(t, namespace, server) {
		for _, protocol := range []string{"tcp", "udp"} {
			args = append(args, "-"+expected+"="+protocol+"://"+hostPort(address, 8080))
		}
	}
	var manifest strings.Builder
	for i := range count {
		manifest.WriteString(pod{fmt.Sprintf("%s-%d", group, i), []string{"n1", "n2"}[i%2], "{group: " + group + "}", fmt.Sprintf(`
  restartPolicy: Never
  initContainers:
  - {name: dial, image: %q, imagePullPolicy: IfNotPresent, args: ["%s"]}
  containers:
  - {name: main, image: %q, imagePullPolicy: IfNotPresent, args: [pause]}`, prober, strings.Join(args, `", "`), agnhost)}.manifest(namespace))
	}
	known := watchAddresses(t, namespace, "group="+group)
	apply(t, manifest.String())
	// An init container fails if it never reached one of its targets, or one that is
	// denied.
	finished := func() (succeeded, failed int) {
		states := strings.Fields(kubectl(t, "-n", namespace, "get", "pods", "-l", "group="+group, "-o",
			"jsonpath={.items[*].status.phase}"))
		for _, state := range states {
			switch state {
			case "Running":
				succeeded++
			case "Failed":
				failed++
			}
		}
		return succeeded, failed
	}
	eventually(t, "pods of "+group, func() error {
		if succeeded, failed := finished(); succeeded+failed < count {
			return fmt.Errorf("%d run, %d failed", succeeded, failed)
		}
		return nil
	})
	addressed := known()
	var text strings.Builder
	nodes := map[string][]report{}
	var late []float64 // when the API had the addresses, since the pod began to connect
	for i := range count {
		name := fmt.Sprintf("%s-%d", group, i)
		printed := log(t, namespace, name, "-c", "dial")
		text.WriteString(printed)
		all := reports(t, printed)
		where := []string{"same node", "other node"}[i%2]
		nodes[where] = append(nodes[where], all...)
		if at, ok := addressed[name]; ok && len(all) > 0 {
			late = append(late, float64(at.Sub(all[0].Start).Milliseconds()))
		}
	}
	keep(t, "start-"+group+".json", text.String())
	for _, where := range []string{"same node", "other node"} {
		logStarts(t, group+", "+where, nodes[where])
	}
	if len(late) > 0 {
		t.Logf("%s: %d of %d addresses were in the API after %s", group, len(late), count, quantiles(late))
	}
	if _, failed := finished(); failed > 0 && expected == "allowed" {
		t.Logf("%s: %d pods lost every datagram to an address", group, failed)
	}
	kubectl(t, "-n", namespace, "delete", "pod", "-l", "group="+group, "--wait=true")
}

// watchAddresses notes when the API has the addresses of pods. What it returns ends the
// watch.
func watchAddresses(t *testing.T, namespace, selector string) func() map[string]time.Time {
	t.Helper()
	watch := exec.Command("../cluster/run.sh", "kubectl", "-n", namespace, "get", "pods", "-l", selector, "--watch", "--no-headers",
		"-o", "custom-columns=:.metadata.name,:.status.podIP")
	watch.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	output, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() {
		if err := syscall.Kill(-watch.Process.Pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	seen := make(chan map[string]time.Time, 1)
	go func() {
		times := make(map[string]time.Time)
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if fields := strings.Fields(lines.Text()); len(fields) == 2 && fields[1] != "<none>" && times[fields[0]].IsZero() {
				times[fields[0]] = time.Now()
			}
		}
		seen <- times
	}()
	return func() map[string]time.Time {
		end()
		times := <-seen
		_ = watch.Wait() // it was killed
		return times
	}
}

// quantiles describes values in milliseconds. It sorts them.
func quantiles(values []float64) string {
	slices.Sort(values)
	at := func(q float64) float64 { return values[int(q*float64(len(values)-1)+0.5)] }
	return fmt.Sprintf("p50 %.0f ms, p99 %.0f ms, max %.0f ms", at(0.5), at(0.99), values[len(values)-1])
}

// logStarts logs the figures of the pods, by protocol. What is denied and gets through is
// an error, and so is TCP that never connects: it sends its first packet again. A
// datagram is sent once.
func logStarts(t *testing.T, group string, all []report) {
	t.Helper()
	for _, protocol := range []string{"tcp", "udp"} {
		attempts, failed, leaks, firstFailed, second := 0, 0, 0, 0, 0
		var firsts []float64
		denied := false
		for _, r := range all {
			for _, target := range r.Targets {
				if !strings.HasPrefix(target.Target, protocol) {
					continue
				}
				denied = target.Expected == "denied"
				attempts += target.Attempts
				failed += target.Failed
				leaks += target.Leaks
				if target.First == nil {
					firstFailed++
					continue
				}
				firsts = append(firsts, *target.First)
				if *target.First >= 1000 {
					second++
				}
			}
		}
		switch {
		case denied && leaks > 0:
			t.Errorf("%s: %d of %d denied %s attempts got through", group, leaks, attempts, protocol)
		case denied:
			t.Logf("%s: %s: none of %d denied attempts got through", group, protocol, attempts)
		case len(firsts) == 0:
			t.Errorf("%s: no first %s attempt succeeded", group, protocol)
		default:
			t.Logf("%s: %s: first attempts: %s, %d of %d failed, %d took a second or more; %d of all %d attempts failed",
				group, protocol, quantiles(firsts), firstFailed, len(firsts)+firstFailed, second, failed, attempts)
		}
		if protocol == "tcp" && !denied && failed > 0 {
			t.Errorf("%s: %d TCP connections of %d failed", group, failed, attempts)
		}
	}
}

// Kubelets' probes reach pods that are closed to everything: a kubelet is the pod's
// own node.
func TestKubeletProbesUnderDenyAll(t *testing.T) {
	namespace := newNamespace(t)
	policy(t, namespace, "deny-all", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
	var pods []pod
	for _, node := range []string{"n1", "n2"} {
		for name, check := range map[string]string{
			"http": "{httpGet: {path: /healthz, port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}",
			"tcp":  "{tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}",
			"exec": "{exec: {command: [/bin/true]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 1}",
		} {
			pods = append(pods, pod{name + "-" + node, node, "{app: probed}", fmt.Sprintf(`
  containers:
  - name: main
    image: %s
    imagePullPolicy: IfNotPresent
    args: [netexec]
    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 100}
    livenessProbe: %s
    readinessProbe: %s`, agnhost, check, check)})
		}
	}
	start(t, namespace, pods...)
	// The kubelets count their probes.
	for _, p := range pods {
		eventually(t, "ten probes of "+p.name, func() error {
			metrics := kubectl(t, "get", "--raw", "/api/v1/nodes/"+p.node+"/proxy/metrics/probes")
			for line := range strings.Lines(metrics) {
				if strings.HasPrefix(line, "prober_probe_total{") && strings.Contains(line, `namespace="`+namespace+`"`) && strings.Contains(line, `pod="`+p.name+`"`) &&
					strings.Contains(line, `probe_type="Liveness"`) && strings.Contains(line, `result="successful"`) {
					var count float64
					if _, err := fmt.Sscan(line[strings.LastIndex(line, "}")+1:], &count); err == nil && count >= 10 {
						return nil
					}
				}
			}
			return fmt.Errorf("not yet")
		})
		if restarts := kubectl(t, "-n", namespace, "get", "pod", p.name, "-o", "jsonpath={.status.containerStatuses[0].restartCount}"); restarts != "0" {
			t.Errorf("%s was restarted %s times", p.name, restarts)
		}
	}
}
