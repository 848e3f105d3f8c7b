package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
)

// fakeAgents are agents in this process, by node.
type fakeAgents map[string]func(ctx context.Context, command []string, out, errs io.Writer) error

// connect implements agentOptions.connect.
func (f fakeAgents) connect(context.Context) ([]corev1.Pod, runner, error) {
	var pods []corev1.Pod
	for node := range f {
		phase := corev1.PodRunning
		if f[node] == nil {
			phase = corev1.PodPending
		}
		pods = append(pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "agent-" + node},
			Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
		})
	}
	return pods, func(ctx context.Context, pod *corev1.Pod, command []string, out, errs io.Writer) error {
		return f[pod.Spec.NodeName](ctx, command, out, errs)
	}, nil
}

// prints answers with lines in which NODE is replaced by the node's name.
func prints(node string, lines ...string) func(context.Context, []string, io.Writer, io.Writer) error {
	return func(_ context.Context, _ []string, out, _ io.Writer) error {
		_, err := io.WriteString(out, strings.ReplaceAll(strings.Join(lines, "\n")+"\n", "NODE", node))
		return err
	}
}

const (
	agentLine  = `{"type":"agent","node":"NODE","time":"2026-01-02T03:04:05Z","cursor":"1-2","flows":2,"maxFlows":4096,"evicted":0,"lost":0,"withheld":0}`
	flowLine   = `{"type":"flow","node":"NODE","source":{"namespace":"shop","pod":"web-0","address":"10.0.0.1"},"destination":{"namespace":"shop","pod":"db-0","address":"10.0.0.2"},"protocol":"TCP","port":5432,"verdict":"allow","direction":"ingress","tier":"networkpolicy","reason":"rule matched","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"db"},"rule":0,"count":12,"first":"2026-01-02T03:00:00Z","last":"2026-01-02T03:04:00Z"}`
	deniedLine = `{"type":"flow","node":"NODE","source":{"namespace":"shop","pod":"web-0","address":"10.0.0.1"},"destination":{"address":"192.0.2.1","names":["example.com"]},"protocol":"UDP","port":443,"verdict":"deny","direction":"egress","tier":"networkpolicy","reason":"isolated","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"db"},"count":1,"first":"2026-01-02T03:04:04Z","last":"2026-01-02T03:04:04Z"}`
	denialLine = `{"type":"denial","node":"NODE","time":"2026-01-02T03:04:04Z","source":{"namespace":"shop","pod":"web-0","address":"10.0.0.1","port":40000},"destination":{"address":"192.0.2.1"},"protocol":"UDP","port":443,"verdict":"deny","direction":"egress","tier":"networkpolicy","reason":"isolated","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"db"}}`
)

// flowsOf runs the command flows with these agents.
func flowsOf(t *testing.T, agents fakeAgents, f flowsOptions) (stdout, stderr string, err error) {
	t.Helper()
	f.options, f.connect = &options{notes: io.Discard, namespace: "shop"}, agents.connect
	var out, errs bytes.Buffer
	cmd := newFlows(f.options)
	cmd.SetContext(t.Context())
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	err = f.run(cmd)
	return out.String(), errs.String(), err
}

func TestFlowsOfAllAgentsAreSideBySide(t *testing.T) {
	agents := fakeAgents{"node-2": prints("node-2", agentLine, flowLine), "node-1": prints("node-1", agentLine, flowLine, deniedLine, denialLine)}
	for _, tc := range []struct {
		name string
		f    flowsOptions
		want string
	}{
		{"text", flowsOptions{output: "text"}, `
NODE    FROM        TO                       PORT      VERDICT  BY                                     PACKETS  LAST
node-1  shop/web-0  192.0.2.1 (example.com)  UDP 443   deny     NetworkPolicy shop/db, isolated        1        1s
node-1  shop/web-0  shop/db-0                TCP 5432  allow    NetworkPolicy shop/db, ingress rule 0  12       5s
node-2  shop/web-0  shop/db-0                TCP 5432  allow    NetworkPolicy shop/db, ingress rule 0  12       5s
`},
		{"with single packets", flowsOptions{output: "text", denied: true}, `
NODE    FROM        TO                       PORT      VERDICT  BY                                     PACKETS  LAST
node-1  shop/web-0  192.0.2.1 (example.com)  UDP 443   deny     NetworkPolicy shop/db, isolated        1        1s
node-1  shop/web-0  shop/db-0                TCP 5432  allow    NetworkPolicy shop/db, ingress rule 0  12       5s
node-2  shop/web-0  shop/db-0                TCP 5432  allow    NetworkPolicy shop/db, ingress rule 0  12       5s

NODE    DENIED PACKET FROM         TO         PORT     BY                               AGO
node-1  shop/web-0 10.0.0.1:40000  192.0.2.1  UDP 443  NetworkPolicy shop/db, isolated  1s
`},
		{"json", flowsOptions{output: "json"}, "\n" + strings.ReplaceAll(strings.Join([]string{agentLine, flowLine, deniedLine, denialLine, ""}, "\n"), "NODE", "node-1") +
			strings.ReplaceAll(strings.Join([]string{agentLine, flowLine, ""}, "\n"), "NODE", "node-2")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			stdout, stderr, err := flowsOf(t, agents, tc.f)
			if diff := cmp.Diff(tc.want[1:], stdout); diff != "" || stderr != "" || err != nil {
				t.Errorf("error %v, standard error %q, standard output (-want +got):\n%s", err, stderr, diff)
			}
		})
	}
}

// The command names agents that do not answer and prints the other agents' records.
func TestAnAgentThatDoesNotAnswer(t *testing.T) {
	good := prints("node-1", agentLine, flowLine)
	for _, tc := range []struct {
		name  string
		agent func(context.Context, []string, io.Writer, io.Writer) error
		want  string
	}{
		{"not running", nil, "the pod is Pending"},
		{"forbidden", func(context.Context, []string, io.Writer, io.Writer) error {
			return errors.New("pods/exec is forbidden")
		}, "pods/exec is forbidden"},
		{"its command fails", func(_ context.Context, _ []string, _, errs io.Writer) error {
			fmt.Fprintln(errs, "no such socket"+strings.Repeat("x", 10*maxComplaint))
			return errors.New("exit code 1")
		}, "exit code 1: no such socketxxx"},
		{"it fails after some records", func(ctx context.Context, command []string, out, errs io.Writer) error {
			return errors.Join(prints("node-2", agentLine, flowLine)(ctx, command, out, errs), errors.New("cut off"))
		}, "cut off"},
		{"it hangs", prints("node-2"), "no answer in 20s"},
		{"another program", prints("node-2", "unknown command \x1b[31m"), "line 1: invalid character"},
		{"an older version", prints("node-2"), "it has no records"},
		{"endless records", func(_ context.Context, _ []string, out, _ io.Writer) error {
			for {
				if _, err := io.WriteString(out, agentLine+"\n"); err != nil {
					return err
				}
			}
		}, "more than 20000 records"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agents := fakeAgents{"node-1": good, "node-2": tc.agent}
			var stdout, stderr string
			var err error
			if tc.name == "it hangs" {
				synctest.Test(t, func(t *testing.T) {
					release := make(chan struct{})
					agents["node-2"] = func(context.Context, []string, io.Writer, io.Writer) error { <-release; return nil }
					stdout, stderr, err = flowsOf(t, agents, flowsOptions{output: "text"})
					close(release)
				})
			} else {
				stdout, stderr, err = flowsOf(t, agents, flowsOptions{output: "text"})
			}

			if !errors.Is(err, errNo) || !strings.Contains(stdout, "node-1  shop/web-0  shop/db-0") || strings.Contains(stdout, "node-2") {
				t.Errorf("error %v, standard output:\n%s", err, stdout)
			}
			if !strings.HasPrefix(stderr, "No answer of node node-2: kube-system/agent-node-2: "+tc.want) || strings.ContainsRune(stderr, '\x1b') || len(stderr) > 2*maxComplaint {
				t.Errorf("standard error %q, want %q", stderr, tc.want)
			}
			if _, _, err := flowsOf(t, fakeAgents{"node-2": func(context.Context, []string, io.Writer, io.Writer) error { return errors.New("x") }}, flowsOptions{output: "text"}); err == nil || errors.Is(err, errNo) {
				t.Errorf("no agent has answered: %v", err)
			}
		})
	}
}

// The output says what agents could not record.
func TestLossesAreShown(t *testing.T) {
	line := strings.NewReplacer(`"lost":0`, `"lost":7`, `"evicted":0`, `"evicted":1`).Replace(agentLine)
	stdout, stderr, err := flowsOf(t, fakeAgents{"node-1": prints("node-1", line)}, flowsOptions{output: "text"})
	const want = "Node node-1: 7 decisions are in no flow, because they came too fast\nNode node-1: 1 flow made room for others\n"
	if err != nil || stdout != "No flows\n" || stderr != want {
		t.Errorf("error %v, standard output %q, standard error %q", err, stdout, stderr)
	}
}

// There is a column of bytes if some agent knows them.
func TestFlowsShowBytes(t *testing.T) {
	line := strings.Replace(flowLine, `"count":12`, `"count":12,"bytes":1500`, 1)
	stdout, _, err := flowsOf(t, fakeAgents{"node-1": prints("node-1", agentLine, line, deniedLine)}, flowsOptions{output: "text"})
	rows := strings.Split(stdout, "\n")
	if err != nil || len(rows) != 4 || !strings.HasSuffix(rows[0], "  BYTES") || !strings.HasSuffix(rows[1], "s") || !strings.HasSuffix(rows[2], "  1500") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// Records from the future and names with control characters do not garble the table.
func TestStrangeRecordsAreShownPlainly(t *testing.T) {
	line := strings.NewReplacer("03:04:00Z", "05:00:00Z", "db-0", `db\u001b[31m`).Replace(flowLine)
	stdout, _, err := flowsOf(t, fakeAgents{"node-1": prints("node-1", agentLine, line)}, flowsOptions{output: "text"})
	if err != nil || !strings.Contains(stdout, "shop/db?[31m") || !strings.Contains(stdout, " 0s\n") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// The flows of a pod's two addresses are one row.
func TestFlowsOfDualStackPodsAreOneRow(t *testing.T) {
	v6 := strings.NewReplacer("10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2", "03:04:00Z", "03:04:03Z", `"count":12`, `"count":3,"bytes":100`).Replace(flowLine)
	otherPort := strings.Replace(flowLine, "5432", "5433", 1)
	stdout, _, err := flowsOf(t, fakeAgents{"node-1": prints("node-1", agentLine, flowLine, otherPort, v6)}, flowsOptions{output: "text"})
	const want = `
NODE    FROM        TO         PORT      VERDICT  BY                                     PACKETS  LAST  BYTES
node-1  shop/web-0  shop/db-0  TCP 5432  allow    NetworkPolicy shop/db, ingress rule 0  15       2s    100
node-1  shop/web-0  shop/db-0  TCP 5433  allow    NetworkPolicy shop/db, ingress rule 0  12       5s
`
	if diff := cmp.Diff(want[1:], stdout); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}

// The columns of followed flows never move: what is too long loses its middle.
func TestFollowedColumnsKeepTheirWidth(t *testing.T) {
	long := strings.Replace(flowLine, "web-0", "a-workload-with-quite-a-long-name-7d4f9c8b6d-bcdfg", 1)
	out := new(strings.Builder)
	follow := &followPrinter{out: out}
	if err := flows.Decode(strings.NewReader(flowLine+"\n"+long), follow.print); err != nil {
		t.Fatal(err)
	}
	rows := strings.Split(out.String(), "\n")
	column := func(row string) int { return len([]rune(row[:strings.Index(row, "shop/db-0")])) }
	if column(rows[1]) != column(rows[2]) || !strings.Contains(rows[2], "…") || !strings.Contains(rows[2], "-bcdfg ") {
		t.Errorf("got\n%s", out)
	}
}

// There is a column for what audited policies would decide, if it differs.
func TestFlowsShowWhatAuditedPoliciesWouldDecide(t *testing.T) {
	line := strings.Replace(flowLine, `"count"`, `"audit":{"verdict":"deny","direction":"ingress","tier":"networkpolicy","reason":"isolated","policy":{"kind":"NetworkPolicy","namespace":"shop","name":"closed"}},"count"`, 1)
	stdout, _, err := flowsOf(t, fakeAgents{"node-1": prints("node-1", agentLine, line, deniedLine)}, flowsOptions{output: "text"})
	rows := strings.Split(stdout, "\n")
	if err != nil || len(rows) != 4 || !strings.HasSuffix(rows[0], "  AUDIT") || strings.Contains(rows[1], "closed") || !strings.HasSuffix(rows[2], "  deny by NetworkPolicy shop/closed, isolated") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// What was decided about an address in dispute says so.
func TestFlowsShowDisputedAddresses(t *testing.T) {
	line := strings.Replace(deniedLine, `"count"`, `"disputed":true,"count"`, 1)
	stdout, _, err := flowsOf(t, fakeAgents{"node-1": prints("node-1", agentLine, line)}, flowsOptions{output: "text"})
	if err != nil || !strings.Contains(stdout, "NetworkPolicy shop/db, isolated, disputed address ") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

// A flow that stands for all addresses of a block or domain shows these instead of the
// address. A denied flow shows its address.
func TestFlowsShowBlocksAndDomains(t *testing.T) {
	for _, tc := range []struct{ name, old, end, want string }{
		{"a block", "", `"block":"192.0.2.0/24"`, "  192.0.2.0/24  "},
		{"a domain", "", `"domain":"*.example.com","names":["www.example.com"]`, "  *.example.com  "},
		{"denied", `"verdict":"allow"`, `"block":"192.0.2.0/24"`, "  192.0.2.1  "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			line := strings.Replace(flowLine, `{"namespace":"shop","pod":"db-0","address":"10.0.0.2"}`, `{"address":"192.0.2.1",`+tc.end+`}`, 1)
			if tc.old != "" {
				line = strings.Replace(line, tc.old, `"verdict":"deny"`, 1)
			}
			if stdout, _, err := flowsOf(t, fakeAgents{"node-1": prints("node-1", agentLine, line)}, flowsOptions{output: "text"}); err != nil || !strings.Contains(stdout, tc.want) {
				t.Errorf("%v\n%s\nwant %q", err, stdout, tc.want)
			}
			follow := &followPrinter{out: new(strings.Builder)}
			if err := flows.Decode(strings.NewReader(line), follow.print); err != nil || !strings.Contains(follow.out.(*strings.Builder).String(), tc.want) {
				t.Errorf("followed: %v\n%s\nwant %q", err, follow.out, tc.want)
			}
		})
	}
}

func TestFlowsCommandOfAgents(t *testing.T) {
	for _, tc := range []struct {
		f         flowsOptions
		namespace string
		want      string // the command, or a substring of the error
	}{
		{flowsOptions{}, "", "kube-network-policies flows"},
		{flowsOptions{denied: true}, "shop", "kube-network-policies flows --namespace=shop --denied"},
		{flowsOptions{audit: true}, "", "kube-network-policies flows --audit"},
		{flowsOptions{follow: true}, "", "kube-network-policies flows --follow"},
		{flowsOptions{pod: "web-0"}, "shop", "kube-network-policies flows --namespace=shop --pod=web-0"},
		{flowsOptions{pod: "other/web-0"}, "", "kube-network-policies flows --namespace=other --pod=web-0"},
		{flowsOptions{pod: "other/web-0"}, "shop", "--pod=other/web-0: not in --namespace=shop"},
		{flowsOptions{output: "yaml"}, "", "--output=yaml: must be one of text, json"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			if tc.f.output == "" {
				tc.f.output = "text"
			}
			tc.f.options = &options{namespace: tc.namespace}
			command, err := tc.f.command()
			if err != nil {
				command = []string{err.Error()}
			}

			if got := strings.Join(command, " "); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	f := flowsOptions{agentOptions: agentOptions{options: &options{files: []string{"x"}}}, output: "text"}
	if _, err := f.command(); err == nil || !strings.Contains(err.Error(), "--filename") {
		t.Errorf("with files: %v", err)
	}
	_, _, err := flowsOf(t, fakeAgents{}, flowsOptions{output: "text", agentOptions: agentOptions{agentsSelector: "a=b", agentsNamespace: "x"}})
	if err == nil || err.Error() != "--agents-selector=a=b: there are no such pods in namespace x" {
		t.Errorf("without agents: %v", err)
	}
}

// Agents' clocks may differ: records are ordered by their age on the agent's clock.
func TestFlowsAreOrderedByTheClocksOfTheirAgents(t *testing.T) {
	ahead := strings.NewReplacer("03:04:05Z", "13:04:05Z")
	aheadFlow := strings.NewReplacer("03:04:00Z", "13:03:00Z").Replace(flowLine)
	var records []flows.Record
	text := strings.ReplaceAll(ahead.Replace(agentLine)+"\n"+aheadFlow, "NODE", "a") + "\n" + strings.ReplaceAll(agentLine+"\n"+flowLine, "NODE", "b")
	if err := flows.Decode(strings.NewReader(text), func(r *flows.Record) error { records = append(records, *r); return nil }); err != nil {
		t.Fatal(err)
	}
	got := recordsOf(records, flows.TypeFlow)
	if len(got) != 2 || got[0].Node != "b" || got[0].age != 5*time.Second || got[1].age != 65*time.Second {
		t.Errorf("%+v", got)
	}
	// A record later than the answer, because a clock was set back, has age 0.
	for _, kind := range []string{flows.TypeFlow, flows.TypeRule} {
		later, at := records[3], records[2].Time.Add(time.Hour)
		later.Type, later.Last = kind, &at
		if got := recordsOf([]flows.Record{records[2], later}, kind); len(got) != 1 || got[0].age != 0 {
			t.Errorf("a %s after its answer: %+v", kind, got)
		}
	}
}

// --follow prints records as they arrive and continues after an agent has ended.
func TestFollow(t *testing.T) {
	for _, tc := range []struct {
		name, output string
		want         string
	}{
		{"text", "text", `
TIME      NODE              FROM                              TO                                PORT        VERDICT  BY                                        PACKETS  AUDIT
HH:MM:SS  node-1            shop/web-0                        shop/db-0                         TCP 5432    allow    NetworkPolicy shop/db, ingress rule 0     12
HH:MM:SS  node-1            shop/web-0                        192.0.2.1 (example.com)           UDP 443     deny     NetworkPolicy shop/db, isolated           1
HH:MM:SS  node-1            10.0.0.1:40000                    192.0.2.1                         UDP 443     deny     NetworkPolicy shop/db, isolated           packet
`},
		{"json", "json", "\n" + strings.ReplaceAll(strings.Join([]string{agentLine, flowLine, deniedLine, denialLine, ""}, "\n"), "NODE", "node-1")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, interrupt := context.WithCancel(t.Context())
				agents := fakeAgents{
					"node-1": func(ctx context.Context, command []string, out, errs io.Writer) error {
						for _, line := range []string{agentLine, flowLine, deniedLine, denialLine} {
							time.Sleep(agentTimeout / 2)
							_ = prints("node-1", line)(ctx, command, out, errs)
						}
						<-ctx.Done()
						return ctx.Err()
					},
					"node-2": prints("node-2"),
					"node-3": func(ctx context.Context, _ []string, _, _ io.Writer) error { <-ctx.Done(); return ctx.Err() },
				}
				f := flowsOptions{agentOptions: agentOptions{options: &options{notes: io.Discard}, connect: agents.connect}, output: tc.output, follow: true, denied: true}
				var out, errs bytes.Buffer
				cmd := newFlows(f.options)
				cmd.SetContext(ctx)
				cmd.SetOut(&out)
				cmd.SetErr(&errs)
				go func() {
					time.Sleep(10 * agentTimeout)
					interrupt()
				}()
				if err := f.run(cmd); err != nil {
					t.Error(err)
				}
				got := regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d`).ReplaceAllString(out.String(), "HH:MM:SS")
				if diff := cmp.Diff(tc.want[1:], got); diff != "" {
					t.Errorf("standard output (-want +got):\n%s", diff)
				}

				want := "No more flows of node node-2: kube-system/agent-node-2: the command in the pod has ended\n" +
					"No more flows of node node-3: kube-system/agent-node-3: no answer in 20s\n"
				if errs.String() != want {
					t.Errorf("standard error %q, want %q", &errs, want)
				}
			})
		})
	}
}

func TestFollowEndsWithTheLastAgent(t *testing.T) {
	_, stderr, err := flowsOf(t, fakeAgents{"node-1": prints("node-1", agentLine)}, flowsOptions{output: "text", follow: true})
	if err == nil || err.Error() != "no agent answers any more" || !strings.Contains(stderr, "node-1") {
		t.Errorf("%v, standard error %q", err, stderr)
	}
}
