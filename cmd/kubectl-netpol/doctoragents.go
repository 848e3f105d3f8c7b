package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

// agentState is what is known of an agent.
type agentState struct {
	Node string `json:"node"`
	Pod  string `json:"pod"`
	// Version, Pods and Snapshot are missing if the agent did not answer or is an older one.
	Version  string     `json:"version,omitempty"`
	Pods     *int       `json:"pods,omitempty"`
	Snapshot *time.Time `json:"snapshot,omitempty"`
	// NotReady is the reason, empty if the agent is ready.
	NotReady string `json:"notReady,omitempty"`
	// Problems are causes of netpol_node_problems.
	Problems  []string `json:"problems,omitempty"`
	AuditOnly bool     `json:"auditOnly,omitempty"`
	age       time.Duration
}

const (
	// noFlows selects the record of an agent alone: no pod has this name.
	noFlows = "--pod=-"
	// maxMetrics limits how many bytes of an agent's metrics are kept.
	maxMetrics = 4 << 20

	// The status writer's pods, their container and its program.
	writerSelector  = "app.kubernetes.io/name=netpol-status"
	writerContainer = "status-writer"
)

// askAgents asks the agents for their states and metrics.
func (x *examination) askAgents(ctx context.Context) {
	x.Agents = statesOf(ctx, x.agents, x.inAgent)
	x.metrics = make([][]byte, len(x.Agents))
	byName := map[string]*corev1.Pod{}
	for i := range x.agents {
		byName[x.agents[i].Namespace+"/"+x.agents[i].Name] = &x.agents[i]
	}
	errs := make([]error, len(x.Agents))
	var group errgroup.Group
	group.SetLimit(agentsAtOnce)
	for i := range x.Agents {
		if x.Agents[i].Version == "" {
			continue // it has not answered
		}
		group.Go(func() error {
			x.metrics[i], errs[i] = x.metricsOf(ctx, byName[x.Agents[i].Pod])
			return nil
		})
	}
	_ = group.Wait() // each agent has its own error
	for i := range x.Agents {
		if errs[i] != nil {
			x.cannotSay("problems of node "+x.Agents[i].Node, errs[i])
		}
		for _, m := range nodeProblem.FindAllSubmatch(x.metrics[i], -1) {
			x.Agents[i].Problems = append(x.Agents[i].Problems, string(m[1]))
		}
	}
}

// nodeProblem is a line of an agent's metrics about a problem that there is.
var nodeProblem = regexp.MustCompile(`(?m)^netpol_node_problems\{cause="([a-z_]+)"\} [1-9]`)

func (x *examination) inAgent(ctx context.Context, pod *corev1.Pod, command []string, out, errs io.Writer) error {
	return x.cluster.exec(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, agentContainer, command, out, errs)
}

func (x *examination) metricsOf(ctx context.Context, pod *corev1.Pod) ([]byte, error) {
	return x.output(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, agentContainer, agentCommand, "probe", "metrics")
}

// output returns what a command prints.
func (x *examination) output(ctx context.Context, pod types.NamespacedName, container string, command ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, agentTimeout, noAnswer(agentTimeout))
	defer cancel()
	out, complaint := &capped{limit: maxMetrics}, &capped{limit: maxComplaint}
	if err := x.cluster.exec(ctx, pod, container, command, out, complaint); err != nil {
		err = cmp.Or(context.Cause(ctx), err)
		if text := complaint.text(); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return nil, err
	}
	return bytes.Clone(out.kept), nil
}

// statesOf asks the agents, and returns their states ordered by node.
func statesOf(ctx context.Context, agents []corev1.Pod, run runner) []agentState {
	pods := map[string]*corev1.Pod{}
	for i := range agents {
		pods[agents[i].Namespace+"/"+agents[i].Name] = &agents[i]
	}
	states := []agentState{}
	for _, a := range askAll(ctx, agents, run, []string{agentCommand, "flows", noFlows}) {
		state := agentState{Node: a.node, Pod: a.pod}
		switch {
		case a.failed():
			state.NotReady = cmp.Or(podProblem(pods[a.pod], agentContainer), a.err.Error())
		case a.records[0].State != nil:
			r := &a.records[0]
			state.Version, state.NotReady, state.Pods, state.Snapshot = r.Version, r.NotReady, &r.Pods, r.Snapshot
			state.AuditOnly = r.Summary != nil && r.AuditOnly
			if r.Snapshot != nil {
				state.age = max(0, r.Time.Sub(*r.Snapshot))
			}
		default:
			state.NotReady = podProblem(pods[a.pod], agentContainer)
		}
		states = append(states, state)
	}
	return states
}

// podProblem returns why a pod with this container is not ready, as its status has it, or "".
func podProblem(pod *corev1.Pod, container string) string {
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		if w := c.State.Waiting; c.Name == container && w != nil {
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
	if ready := podCondition(pod, corev1.PodReady); ready != nil && ready.Status != corev1.ConditionTrue {
		return cmp.Or(ready.Message, "the pod is not ready")
	}
	return ""
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// remedies are what to do about causes of netpol_node_problems. docs/modules/node-checks.md has more.
var remedies = map[string]string{
	"addresses":        "see which pod claims it in the agent's log",
	"bridge_netfilter": "load br_netfilter and set net.bridge.bridge-nf-call-iptables and -ip6tables to 1",
	"data_plane":       "use the policies of the plugin that forwards past netfilter, and remove this agent",
	"firewall":         "accept what pods send and receive in the chain that the agent's log names",
	"flowtable":        "nothing, unless denied connections go on",
	"helper":           "allow what the helper expects by policies, or remove it",
	"own_node":         "correct --hostname-override, or create the Node",
	"pod_interface":    "use a plugin whose pods send through the node",
	"pod_ranges":       "let the agent read the CNI cache, or correct spec.podCIDRs",
	"policy_engine":    "switch the other engine off and remove its rules, or remove this agent",
	"queue":            "restart the agent",
	"unknown":          "see the agent's log for what it cannot read",
	"untracked":        "leave pods out of the NOTRACK rules",
}

// checkNodes finds nodes without an agent that is ready, and what agents found on theirs.
func (x *examination) checkNodes() {
	byNode := map[string][]*agentState{}
	for i := range x.Agents {
		byNode[x.Agents[i].Node] = append(byNode[x.Agents[i].Node], &x.Agents[i])
	}
	if len(x.agents) == 0 {
		x.find("namespace "+x.agentsNamespace, "no agents run", fmt.Sprintf("install them, or name them by --agents-namespace and --agents-selector (%s)", x.agentsSelector))
	}
	for i := range x.nodes {
		name := x.nodes[i].Name
		agents := byNode[name]
		if len(agents) == 0 && len(x.agents) > 0 {
			x.find("node "+name, "no agent runs there, and policies are not enforced", "see why the DaemonSet has no pod on it")
		}
		if len(agents) > 0 && !slices.ContainsFunc(agents, func(a *agentState) bool { return a.NotReady == "" }) {
			x.find("node "+name, "its agent is not ready: "+agents[0].NotReady, "see the log of pod "+agents[0].Pod)
		}
		for _, a := range agents {
			if a.AuditOnly {
				x.find("node "+name, "its agent only audits policies", "remove --audit once nothing is denied by mistake")
			}
			for _, cause := range a.Problems {
				x.find("node "+name, "its agent reports the problem "+cause, cmp.Or(remedies[cause], "see netpol_node_problems in docs/modules/node-checks.md"))
			}
		}
	}
}

// checkWriter finds the status writer and its version.
func (x *examination) checkWriter(ctx context.Context) {
	list, err := x.cluster.client.CoreV1().Pods(x.agentsNamespace).List(ctx, metav1.ListOptions{LabelSelector: writerSelector})
	if err != nil {
		x.cannotSay("status writer", err)
		return
	}
	for i := range list.Items {
		pod := &list.Items[i]
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if problem := podProblem(pod, writerContainer); problem != "" {
			x.find("status writer", "its pod "+name.String()+" is not ready: "+problem, "see its log; policies are enforced without it, but get no conditions")
			continue
		}
		text, err := x.output(ctx, name, writerContainer, writerContainer, "version")
		if err != nil {
			x.cannotSay("version of the status writer", err)
			continue
		}
		x.Writer = printedVersion(string(text))
	}
	x.writers = list.Items
}

// printedVersion returns the version in what a program prints for the command version.
func printedVersion(text string) string {
	_, after, _ := strings.Cut(text, ", version ")
	version, _, _ := strings.Cut(after, " ")
	return cmp.Or(printable.Text(version), "?")
}
