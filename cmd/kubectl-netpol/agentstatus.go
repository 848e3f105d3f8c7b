package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// statusOptions are the flags of the command status.
type statusOptions struct {
	agentOptions
	output string
}

func newStatus(o *options) *cobra.Command {
	s := &statusOptions{agentOptions: agentOptions{options: o}}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the agents: version, pods, age of what they decide by, and whether they are ready",
		Long: `Show a line for each agent of the live cluster: its node and version, how many pods of the
node it knows, since when it decides by its latest snapshot of the cluster, and whether it
is ready, or why not. Of one that does not answer, the state of its pod is shown.

The rights are those of the command flows. The exit code is 0 when all agents are ready, 1
when some are not, and 2 when the agents cannot be listed.`,
		Example: "  kubectl netpol status",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	s.addAgentFlags(cmd.Flags())
	cmd.Flags().StringVarP(&s.output, "output", "o", "text", "text or json")
	return cmd
}

// agentState is a line of the answer.
type agentState struct {
	Node string `json:"node"`
	Pod  string `json:"pod"`
	// Version, Pods and Snapshot are missing if the agent did not answer or is an older one.
	Version  string     `json:"version,omitempty"`
	Pods     *int       `json:"pods,omitempty"`
	Snapshot *time.Time `json:"snapshot,omitempty"`
	// NotReady is the reason, empty if the agent is ready.
	NotReady string `json:"notReady,omitempty"`
	age      time.Duration
}

// noFlows selects the record of an agent alone: no pod has this name.
const noFlows = "--pod=-"

func (s *statusOptions) run(cmd *cobra.Command) error {
	if err := checkOutput("status", s.output); err != nil {
		return err
	}
	if len(s.files) > 0 {
		return errors.New("--filename: only a live cluster has agents")
	}
	agents, run, err := s.find(cmd.Context())
	if err != nil {
		return err
	}
	done := s.progress("Asking the agents")
	states := statesOf(cmd.Context(), agents, run)
	done()
	if s.output == "json" {
		err = printJSON(cmd.OutOrStdout(), map[string]any{"agents": states})
	} else {
		err = writeStates(cmd.OutOrStdout(), states)
	}
	if err == nil && slices.ContainsFunc(states, func(s agentState) bool { return s.NotReady != "" }) {
		return errNo
	}
	return err
}

// statesOf asks the agents, and returns their states ordered by node.
func statesOf(ctx context.Context, agents []corev1.Pod, run runner) []agentState {
	pods := map[string]*corev1.Pod{}
	for i := range agents {
		pods[agents[i].Namespace+"/"+agents[i].Name] = &agents[i]
	}
	var states []agentState
	for _, a := range askAll(ctx, agents, run, []string{agentCommand, "flows", noFlows}) {
		state := agentState{Node: a.node, Pod: a.pod}
		switch {
		case a.failed():
			state.NotReady = cmp.Or(podProblem(pods[a.pod]), a.err.Error())
		case a.records[0].State != nil:
			r := &a.records[0]
			state.Version, state.NotReady, state.Pods, state.Snapshot = r.Version, r.NotReady, &r.Pods, r.Snapshot
			if r.Snapshot != nil {
				state.age = max(0, r.Time.Sub(*r.Snapshot))
			}
		default:
			state.NotReady = podProblem(pods[a.pod])
		}
		states = append(states, state)
	}
	return states
}

// podProblem returns why the pod of an agent is not ready, as its status has it, or "".
func podProblem(pod *corev1.Pod) string {
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		if w := c.State.Waiting; c.Name == agentContainer && w != nil {
			problem := strings.Trim(w.Reason+": "+w.Message, ": ")
			if last := c.LastTerminationState.Terminated; last != nil {
				problem += fmt.Sprintf(" (it ended with exit code %d)", last.ExitCode)
			}
			return problem
		}
	}
	if pod.Status.Phase != corev1.PodRunning {
		return fmt.Sprintf("the pod is %s", cmp.Or(pod.Status.Phase, corev1.PodUnknown))
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue {
			return cmp.Or(c.Message, "the pod is not ready")
		}
	}
	return ""
}

func writeStates(w io.Writer, states []agentState) error {
	out := bufio.NewWriter(w)
	rows := [][]string{{"NODE", "AGENT", "VERSION", "PODS", "SNAPSHOT", "READY"}}
	for _, s := range states {
		row := []string{s.Node, s.Pod, cmp.Or(s.Version, "?"), "?", "?", "yes"}
		if s.Pods != nil {
			row[3], row[4] = fmt.Sprint(*s.Pods), "none"
		}
		if s.Snapshot != nil {
			row[4] = duration.HumanDuration(s.age) + " ago"
		}
		if s.NotReady != "" {
			row[5] = "no: " + s.NotReady
		}
		rows = append(rows, row)
	}
	writeColumns(out, rows)
	return out.Flush()
}
