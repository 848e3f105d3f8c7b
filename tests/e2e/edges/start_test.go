package edges

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// startedAtOnce is how many pods start together.
const startedAtOnce = 30

// Pods whose init containers connect at once, thirty in each group: those that no policy
// selects, those that a policy selects, and those that connect to a server which admits
// them by their labels, so that its node must know them. Nothing is denied to any of
// them. The figures of the first connections are logged, all of the same run.
func TestInitContainersConnectAtOnce(t *testing.T) {
	namespace := newNamespace(t)
	start(t, namespace,
		pod{"open", "n1", "{app: server, admits: all}", container(prober, "serve")},
		pod{"guarded", "n1", "{app: server, admits: some}", container(prober, "serve")})
	policy(t, namespace, "guarded", `{podSelector: {matchLabels: {admits: some}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {group: admitted}}}]}]}`)
	policy(t, namespace, "starters", `{podSelector: {matchLabels: {group: selected}}, policyTypes: [Ingress, Egress], egress: [{to: [{podSelector: {matchLabels: {app: server}}}]}]}`)

	for _, group := range []string{"free", "selected", "admitted"} {
		server := map[string]string{"free": "open", "selected": "open", "admitted": "guarded"}[group]
		args := []string{"probe", "-interval=250ms", "-duration=2s", "-timeout=20s"}
		for _, address := range podAddresses(t, namespace, server) {
			for _, protocol := range []string{"tcp", "udp"} {
				args = append(args, "-allowed="+protocol+"://"+hostPort(address, 8080))
			}
		}
		var manifest strings.Builder
		for i := range startedAtOnce {
			manifest.WriteString(pod{fmt.Sprintf("%s-%d", group, i), []string{"n1", "n2"}[i%2], "{group: " + group + "}", fmt.Sprintf(`
  restartPolicy: Never
  initContainers:
  - {name: dial, image: %q, imagePullPolicy: IfNotPresent, args: ["%s"]}
  containers:
  - {name: main, image: %q, imagePullPolicy: IfNotPresent, args: [pause]}`, prober, strings.Join(args, `", "`), agnhost)}.manifest(namespace))
		}
		apply(t, manifest.String())
		// An init container fails if it never reached one of its targets.
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
			if succeeded, failed := finished(); succeeded+failed < startedAtOnce {
				return fmt.Errorf("%d run, %d failed", succeeded, failed)
			}
			return nil
		})
		text := ""
		for i := range startedAtOnce {
			text += log(t, namespace, fmt.Sprintf("%s-%d", group, i), "-c", "dial")
		}
		keep(t, "start-"+group+".json", text)
		logStarts(t, group, reports(t, text))
		if _, failed := finished(); failed > 0 {
			t.Logf("%s: %d pods lost every datagram to an address", group, failed)
		}
		kubectl(t, "-n", namespace, "delete", "pod", "-l", "group="+group, "--wait=true")
	}
}

// logStarts logs the figures of the pods, by protocol. TCP that never connects is an
// error: it sends its first packet again. A datagram is sent once.
func logStarts(t *testing.T, group string, all []report) {
	t.Helper()
	for _, protocol := range []string{"tcp", "udp"} {
		attempts, failed, firstFailed := 0, 0, 0
		var firsts []float64
		for _, r := range all {
			for _, target := range r.Targets {
				if !strings.HasPrefix(target.Target, protocol) {
					continue
				}
				attempts += target.Attempts
				failed += target.Failed
				if target.First != nil {
					firsts = append(firsts, *target.First)
				} else {
					firstFailed++
				}
			}
		}
		if protocol == "tcp" && failed > 0 {
			t.Errorf("%s: %d TCP connections of %d failed", group, failed, attempts)
		}
		if len(firsts) == 0 {
			t.Errorf("%s: no first %s attempt succeeded", group, protocol)
			continue
		}
		slices.Sort(firsts)
		t.Logf("%s: %s: first attempts: p50 %.0f ms, max %.0f ms, %d of %d failed; %d of all %d attempts failed",
			group, protocol, firsts[len(firsts)/2], firsts[len(firsts)-1], firstFailed, len(firsts)+firstFailed, failed, attempts)
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
