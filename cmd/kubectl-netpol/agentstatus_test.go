package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// status runs the command status with these agents.
func statusOf(t *testing.T, output string, connect func(context.Context) ([]corev1.Pod, runner, error)) (string, error) {
	t.Helper()
	o := &options{notes: io.Discard}
	var out bytes.Buffer
	cmd := newStatus(o)
	cmd.SetContext(t.Context())
	cmd.SetOut(&out)
	s := statusOptions{agentOptions: agentOptions{options: o, connect: connect}, output: output}
	err := s.run(cmd)
	return out.String(), err
}

// stated returns the line of an agent with these further fields.
func stated(more string) string { return strings.TrimSuffix(agentLine, "}") + "," + more + "}" }

func TestStatusOfAgents(t *testing.T) {
	agents := fakeAgents{
		"a": prints("a", stated(`"version":"v1.2.3","pods":7,"snapshot":"2026-01-02T03:01:05Z"`)),
		"b": prints("b", stated(`"version":"v1.2.3","pods":0,"notReady":"no snapshot of the cluster yet"`)),
		"c": prints("c", agentLine),
		"d": nil,
		"e": func(context.Context, []string, io.Writer, io.Writer) error {
			return errors.New("pods/exec is forbidden")
		},
		"f": nil,
	}
	crashing := func(ctx context.Context) ([]corev1.Pod, runner, error) {
		pods, run, err := agents.connect(ctx)
		for i := range pods {
			if pods[i].Spec.NodeName == "f" {
				pods[i].Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{
					Name:                 agentContainer,
					State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m"}},
					LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 2}},
				}}}
			}
		}
		return pods, func(ctx context.Context, pod *corev1.Pod, command []string, out, errs io.Writer) error {
			if pod.Spec.NodeName == "f" {
				return errors.New("container not found")
			}
			return run(ctx, pod, command, out, errs)
		}, err
	}

	got, err := statusOf(t, "text", crashing)

	const want = `
NODE  AGENT                VERSION  PODS  SNAPSHOT  READY
a     kube-system/agent-a  v1.2.3   7     3m ago    yes
b     kube-system/agent-b  v1.2.3   0     none      no: no snapshot of the cluster yet
c     kube-system/agent-c  ?        ?     ?         yes
d     kube-system/agent-d  ?        ?     ?         no: the pod is Pending
e     kube-system/agent-e  ?        ?     ?         no: pods/exec is forbidden
f     kube-system/agent-f  ?        ?     ?         no: CrashLoopBackOff: back-off 5m (it ended with exit code 2)
`
	if diff := cmp.Diff(want[1:], got); diff != "" || !errors.Is(err, errNo) {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestStatusOfReadyAgents(t *testing.T) {
	line := stated(`"version":"v1.2.3","pods":7,"snapshot":"2026-01-02T03:01:05Z"`)
	agents := fakeAgents{"a": func(ctx context.Context, command []string, out, errs io.Writer) error {
		if got := strings.Join(command, " "); got != "kube-network-policies flows --pod=-" {
			t.Errorf("ran %q", got)
		}
		return prints("a", line)(ctx, command, out, errs)
	}}

	got, err := statusOf(t, "json", agents.connect)

	if err != nil || !strings.Contains(got, `"version": "v1.2.3"`) || !strings.Contains(got, `"pods": 7`) || strings.Contains(got, "notReady") {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := statusOf(t, "text", fakeAgents{}.connect); err == nil || errors.Is(err, errNo) {
		t.Errorf("without agents: %v", err)
	}
}
