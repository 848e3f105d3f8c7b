package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/tests/packets/process"
)

// usage is what has been used so far.
type usage struct {
	at       time.Time
	cpu      [3]time.Duration // of the writer, the API server and the agents
	requests map[string]int
}

func (f *enforcedFleet) usage(w *writer) usage {
	f.t.Helper()
	u := usage{at: time.Now(), requests: f.requests()}
	for i, pid := range []int{w.cmd.Process.Pid, f.plane.APIServerPID(), os.Getpid()} {
		u.cpu[i] = must[time.Duration](f.t)(process.CPUTime(pid))
	}
	return u
}

// report prints what has been used since before.
func (f *enforcedFleet) report(what string, w *writer, before usage) {
	f.t.Helper()
	now := f.usage(w)
	questions, rounds := roundsOf(f.agents.allAsked(), before.at)
	seconds := now.at.Sub(before.at).Seconds()
	f.t.Logf("%s, for %.0f s:", what, seconds)
	for i, of := range []string{"the writer", "the API server", "the agents and the test"} {
		used := now.cpu[i] - before.cpu[i]
		f.t.Logf("- CPU of %s %.1f s, %.0f %% of a core, %.2f ms for each question", of, used.Seconds(), 100*used.Seconds()/seconds, 1e3*used.Seconds()/float64(questions))
	}
	resident, peak, err := process.Resident(w.cmd.Process.Pid)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Logf("- memory of the writer %d MB, at most %d MB", resident>>20, peak>>20)
	for _, request := range slices.Sorted(maps.Keys(now.requests)) {
		if n := now.requests[request] - before.requests[request]; n > 0 {
			f.t.Logf("- the writer requested %q %d times", request, n)
		}
	}
	f.t.Logf("- agents were asked %d times; all were asked what is in force within %s", questions, rounds)
	f.t.Logf("- load of the machine %s", must[[]byte](f.t)(os.ReadFile("/proc/loadavg")))
}

// roundsOf returns how many questions were asked since a time, and how long the rounds took in which all
// nodes were asked what is in force there.
func roundsOf(asked []question, since time.Time) (questions int, rounds durations) {
	type round struct{ first, last time.Time }
	var all []round
	nth := map[string]int{} // rounds by node
	for _, q := range asked {
		if q.at.After(since) {
			questions++
		}
		if q.path != inforce.Path {
			continue
		}
		n := nth[q.node]
		nth[q.node]++
		if n == len(all) {
			all = append(all, round{first: q.at})
		}
		all[n].last = q.at
	}
	for _, r := range all {
		if r.first.After(since) {
			rounds = append(rounds, r.last.Sub(r.first))
		}
	}
	return questions, rounds
}

type durations []time.Duration

func (d durations) String() string {
	if len(d) == 0 {
		return "none"
	}
	d = slices.Sorted(slices.Values(d))
	at := func(share float64) time.Duration {
		return d[int(share*float64(len(d)-1))].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %s, p99 %s, at most %s (%d)", at(0.5), at(0.99), at(1), len(d))
}

// noOps updates the status of a pod without changing it, which is what the API server and this machine
// need for any write at least.
func (f *enforcedFleet) noOps(n int) (took durations) {
	f.t.Helper()
	for range n {
		began := time.Now()
		must[*corev1.Pod](f.t)(f.client.CoreV1().Pods(namespace).UpdateStatus(f.t.Context(), f.all[0].pod, metav1.UpdateOptions{}))
		took = append(took, time.Since(began))
	}
	return took
}

// requests counts what the writer has asked the API server, by verb and resource.
func (f *enforcedFleet) requests() map[string]int {
	f.t.Helper()
	log := must[*os.File](f.t)(os.Open(f.audit))
	defer log.Close()
	counts := map[string]int{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb, RequestURI string
			ObjectRef        struct{ Resource, Subresource string }
			ResponseStatus   struct{ Code int }
		}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			f.t.Fatal(err)
		}
		what := strings.TrimSuffix(event.Verb+" "+event.ObjectRef.Resource+"/"+event.ObjectRef.Subresource, "/")
		switch {
		case strings.Contains(event.RequestURI, "dryRun"):
			what += " (dry run)"
		case event.ResponseStatus.Code >= 300:
			what += fmt.Sprint(" (", event.ResponseStatus.Code, ")")
		}
		counts[what]++
	}
	if err := lines.Err(); err != nil {
		f.t.Fatal(err)
	}
	return counts
}
