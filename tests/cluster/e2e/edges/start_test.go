package edges

import (
	"bufio"
	"fmt"
	"math"
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
// those that no policy selects, those that a policy selects, those that connect to a
// server which admits them by their labels, so that its node must know them, the same while
// the API server is frozen, those that it does not admit, and, twice, those without the agent. Nothing may get through of the ones
// that are not admitted. The figures of the first connections are logged, all of the same
// run, and compared with the goals.
func TestInitContainersConnectAtOnce(t *testing.T) {
	namespace := newNamespace(t)
	start(t, namespace,
		pod{"open", "n1", "{app: server, admits: all}", container(prober, "serve")},
		pod{"guarded", "n1", "{app: server, admits: some}", container(prober, "serve")})
	policy(t, namespace, "guarded", `{podSelector: {matchLabels: {admits: some}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchExpressions: [{key: group, operator: In, values: [admitted, unseen]}]}}]}]}`)
	policy(t, namespace, "starters", `{podSelector: {matchLabels: {group: selected}}, policyTypes: [Ingress, Egress], egress: [{to: [{podSelector: {matchLabels: {app: server}}}]}]}`)

	free := startAtOnce(t, namespace, "free", "open", "allowed", nil)
	selected := startAtOnce(t, namespace, "selected", "open", "allowed", nil)
	admitted := startAtOnce(t, namespace, "admitted", "guarded", "allowed", nil)
	if !withAgent {
		return
	}
	unseen := startAtOnce(t, namespace, "unseen", "guarded", "allowed", frozenAPI)
	startAtOnce(t, namespace, "strange", "guarded", "denied", nil)
	removeAgent(t)
	defer installAgent(t)
	without := []starts{
		startAtOnce(t, namespace, "without", "open", "allowed", nil),
		startAtOnce(t, namespace, "again", "open", "allowed", nil),
	}
	logGoals(t, free, selected, admitted, unseen, without)
}

// Where the pods of a group are, seen from their server.
const (
	sameNode  = "same node"
	otherNode = "other node"
)

// starts are the figures of a group of pods that have started at once.
type starts struct {
	group string
	tcp   map[string]*firsts // by where the pods are
	udp   map[string]*firsts
}

// firsts are the figures of one protocol.
type firsts struct {
	milliseconds               []float64 // of the first attempts, as far as they succeeded
	failed, slow               int       // first attempts that failed, and that took a second or more
	attempts, allFailed, leaks int       // of all attempts
	denied                     bool
}

// heldOrMissed says what became of a goal.
func heldOrMissed(held bool) string {
	return map[bool]string{true: "held", false: "missed"}[held]
}

// logGoals compares the figures of pods that start with those without the agent. Times
// depend on the machine: a goal that is missed is no failure.
func logGoals(t *testing.T, free, selected, admitted, unseen starts, without []starts) {
	t.Helper()
	log := func(held bool, format string, args ...any) {
		t.Helper()
		t.Logf("goal %s: "+format, append([]any{heldOrMissed(held)}, args...)...)
	}
	slow, all := 0, 0
	for _, where := range []string{sameNode, otherNode} {
		one, two := without[0].tcp[where], without[1].tcp[where]
		// What two runs without the agent differ by is noise.
		least, most := min(one.quantile(0.5), two.quantile(0.5)), max(one.quantile(0.5), two.quantile(0.5))
		for _, group := range []starts{free, selected} {
			p50, limit := group.tcp[where].quantile(0.5), most+(most-least)
			log(p50 <= limit, "%s, %s: first TCP connection p50 %.0f ms, at most %.0f (without the agent %.0f and %.0f)", group.group, where, p50, limit, least, most)
			log(group.udp[where].allFailed == 0, "%s, %s: %d of %d datagrams lost, none", group.group, where, group.udp[where].allFailed, group.udp[where].attempts)
		}
		for _, group := range []starts{admitted, unseen} {
			f := group.tcp[where]
			p50, p99 := most+20, max(one.quantile(0.99), two.quantile(0.99))+50
			log(f.quantile(0.5) <= p50, "%s, %s: first TCP connection p50 %.0f ms, at most %.0f (without the agent, and 20 ms)", group.group, where, f.quantile(0.5), p50)
			log(f.quantile(0.99) <= p99, "%s, %s: first TCP connection p99 %.0f ms, at most %.0f (without the agent, and 50 ms)", group.group, where, f.quantile(0.99), p99)
		}
		for _, group := range []starts{free, selected, admitted, unseen} {
			f := group.tcp[where]
			slow += f.slow + f.failed
			all += len(f.milliseconds) + f.failed
		}
	}
	log(slow*1000 <= all, "%d of %d first TCP connections took a second or more, at most one of 1000", slow, all)
}

// frozenAPI keeps the API server from answering for ten seconds, from when all kubelets have seen
// the pods of a group: their addresses come to the API later than the pods connect.
func frozenAPI(t *testing.T, namespace, group string, count int) {
	t.Helper()
	eventually(t, "kubelets that see the pods of "+group, func() error {
		if seen := len(strings.Fields(kubectl(t, "-n", namespace, "get", "pods", "-l", "group="+group, "-o", "jsonpath={.items[*].status.startTime}"))); seen < count {
			return fmt.Errorf("%d of %d", seen, count)
		}
		return nil
	})
	run(t, "api", "freeze")
	defer run(t, "api", "thaw")
	time.Sleep(10 * time.Second)
}

// startAtOnce starts pods of a group, half of them on the server's node, disturbs the cluster
// unless disturb is nil, waits until their probers have ended, and deletes them.
func startAtOnce(t *testing.T, namespace, group, server, expected string, disturb func(t *testing.T, namespace, group string, count int)) starts {
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
	if disturb != nil {
		disturb(t, namespace, group, count)
	}
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
	var late []float64 // milliseconds until the API had the addresses, since the pods began to connect
	for i := range count {
		name := fmt.Sprintf("%s-%d", group, i)
		printed := log(t, namespace, name, "-c", "dial")
		text.WriteString(printed)
		all := reports(t, printed)
		where := []string{sameNode, otherNode}[i%2]
		nodes[where] = append(nodes[where], all...)
		if at, ok := addressed[name]; ok && len(all) > 0 {
			late = append(late, float64(at.Sub(all[0].Start).Milliseconds()))
		}
	}
	keep(t, "start-"+group+".json", text.String())
	figures := starts{group, make(map[string]*firsts), make(map[string]*firsts)}
	for _, where := range []string{sameNode, otherNode} {
		figures.tcp[where], figures.udp[where] = summary(nodes[where], "tcp"), summary(nodes[where], "udp")
		figures.tcp[where].log(t, group+", "+where+": tcp")
		figures.udp[where].log(t, group+", "+where+": udp")
		// TCP sends its first packet again, a datagram is sent once.
		if f := figures.tcp[where]; !f.denied && f.allFailed > 0 {
			t.Errorf("%s, %s: %d TCP connections of %d failed", group, where, f.allFailed, f.attempts)
		}
	}
	if len(late) > 0 {
		t.Logf("%s: %d of %d addresses were in the API after %s", group, len(late), count, quantiles(late))
	}
	if _, failed := finished(); failed > 0 && expected == "allowed" {
		t.Logf("%s: %d pods lost every datagram to an address", group, failed)
	}
	kubectl(t, "-n", namespace, "delete", "pod", "-l", "group="+group, "--wait=true")
	return figures
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

// quantile returns one of values, which it sorts.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN() // which no limit allows
	}
	slices.Sort(values)
	return values[int(q*float64(len(values)-1)+0.5)]
}

// quantiles describes values in milliseconds.
func quantiles(values []float64) string {
	return fmt.Sprintf("p50 %.0f ms, p99 %.0f ms, max %.0f ms", quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1))
}

// summary sums up what the probers of some pods report of a protocol.
func summary(all []report, protocol string) *firsts {
	f := new(firsts)
	for _, r := range all {
		for _, target := range r.Targets {
			if !strings.HasPrefix(target.Target, protocol) {
				continue
			}
			f.denied = target.Expected == "denied"
			f.attempts += target.Attempts
			f.allFailed += target.Failed
			f.leaks += target.Leaks
			if target.First == nil {
				f.failed++
				continue
			}
			f.milliseconds = append(f.milliseconds, *target.First)
			if *target.First >= 1000 {
				f.slow++
			}
		}
	}
	return f
}

func (f *firsts) quantile(q float64) float64 { return quantile(f.milliseconds, q) }

// log logs the figures. What is denied and gets through is an error, and so is that
// nothing did of what is allowed.
func (f *firsts) log(t *testing.T, what string) {
	t.Helper()
	switch {
	case f.denied && f.leaks > 0:
		t.Errorf("%s: %d of %d denied attempts got through", what, f.leaks, f.attempts)
	case f.denied:
		t.Logf("%s: none of %d denied attempts got through", what, f.attempts)
	case len(f.milliseconds) == 0:
		t.Errorf("%s: no first attempt succeeded", what)
	default:
		t.Logf("%s: first attempts: %s, %d of %d failed, %d took a second or more; %d of all %d attempts failed",
			what, quantiles(f.milliseconds), f.failed, len(f.milliseconds)+f.failed, f.slow, f.allFailed, f.attempts)
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
