package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/tests/netpol/cluster"
)

const (
	// agentContainer is the agent's container in its pod, agentCommand the program in it.
	agentContainer = "kube-network-policies"
	agentCommand   = "kube-network-policies"
	// agentsAtOnce limits how many agents are asked concurrently, agentTimeout how long one
	// may take.
	agentsAtOnce = 16
	agentTimeout = 20 * time.Second
	// maxAnswer limits the records of an agent, which has about 5,000; maxComplaint limits how
	// many bytes of its standard error are kept.
	maxAnswer    = 20000
	maxComplaint = 1024
)

// agentOptions are the flags of commands that ask the agents.
type agentOptions struct {
	*options
	agentsNamespace string
	agentsSelector  string

	// connect lists the agents' pods and returns a runner for commands in them. Nil stands for
	// the kubeconfig's cluster.
	connect func(context.Context) ([]corev1.Pod, runner, error)
}

func (a *agentOptions) addAgentFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.agentsNamespace, "agents-namespace", metav1.NamespaceSystem, "namespace of the agents' pods")
	fs.StringVar(&a.agentsSelector, "agents-selector", "app.kubernetes.io/name=netpol-agent", "label selector of the agents' pods")
}

// checkAgents returns an error if a flag about agents is set although no agent is asked.
// why names the flag that prevents it, such as "with --records"; it is empty if agents are
// asked.
func (a *agentOptions) checkAgents(cmd *cobra.Command, why string) error {
	for _, name := range []string{"agents-namespace", "agents-selector"} {
		if why != "" && cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s: agents are not asked %s", name, why)
		}
	}
	return nil
}

// flowsOptions are the flags of the command flows.
type flowsOptions struct {
	agentOptions
	pod    string
	denied bool
	audit  bool
	follow bool
	output string
}

// runner runs a command in the agent's container of a pod.
type runner func(ctx context.Context, pod *corev1.Pod, command []string, out, errs io.Writer) error

func newFlows(o *options) *cobra.Command {
	f := &flowsOptions{agentOptions: agentOptions{options: o}}
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "Show what agents decided lately",
		Long: `Show what the agents of the live cluster decided lately: which pods connected to
which, how often, and which policy and rule allowed or denied it. Where an audited
policy would decide otherwise, that is shown, too. What was seen last comes first.
Packets of established connections, and of pods that no policy selects, are not
decided.

With --follow, what is decided from now on is printed, a line for a flow each time its
count has changed, at most once a second, until the command is interrupted.

Each agent is asked by a command that runs in its pod. That takes the rights to list
pods and to create pods/exec in the namespace of the agents.

The exit code is 0 when all agents have answered, 1 when some have not, which are
named on standard error, and 2 when none has.`,
		Example: `  kubectl netpol flows -n shop
  kubectl netpol flows --pod shop/web-0 --denied
  kubectl netpol flows -n shop --follow
  kubectl netpol flows -o json | jq 'select(.type == "flow")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringVar(&f.pod, "pod", "", "only flows from or to this pod: NAME, or NAMESPACE/NAME")
	fs.BoolVar(&f.denied, "denied", false, "only what was denied, and single denied packets")
	fs.BoolVar(&f.audit, "audit", false, "only what audited policies would decide otherwise")
	fs.BoolVar(&f.follow, "follow", false, "print what is decided from now on, until interrupted")
	f.addAgentFlags(fs)
	fs.StringVarP(&f.output, "output", "o", "text", "text or json (a record in each line)")
	return cmd
}

func (f *flowsOptions) run(cmd *cobra.Command) error {
	command, err := f.command()
	if err != nil {
		return err
	}
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if flag.Name == "feature-gates" || flag.Name == "admin-policies" {
			err = fmt.Errorf("--%s: flows are what agents decided, by their own flags", flag.Name)
		}
	})
	if err != nil {
		return err
	}
	if f.follow {
		return f.followAll(cmd, command)
	}
	answers, err := f.ask(cmd, command)
	if err != nil {
		return err
	}
	var records []flows.Record
	for i := range answers {
		records = append(records, answers[i].records...)
	}
	if f.output == "json" {
		err = flows.Encode(cmd.OutOrStdout(), records)
	} else {
		writeLosses(cmd.ErrOrStderr(), records)
		err = writeFlows(cmd.OutOrStdout(), records, f.denied)
	}
	if err == nil && slices.ContainsFunc(answers, answer.failed) {
		return errNo
	}
	return err
}

// command returns the command to run in each agent's container.
func (f *flowsOptions) command() ([]string, error) {
	if err := checkOutput("flows", f.output); err != nil {
		return nil, err
	}
	namespace, pod := f.namespace, f.pod
	if ns, name, ok := strings.Cut(f.pod, "/"); ok {
		if f.namespace != "" && f.namespace != ns {
			return nil, fmt.Errorf("--pod=%s: not in --namespace=%s", f.pod, f.namespace)
		}
		namespace, pod = ns, name
	}
	switch {
	case len(f.files) > 0:
		return nil, errors.New("--filename: only the agents of a live cluster have flows")
	case f.everywhere && f.namespace != "":
		return nil, fmt.Errorf("--all-namespaces: not with --namespace=%s", f.namespace)
	}
	command := []string{agentCommand, "flows"}
	if namespace != "" {
		command = append(command, "--namespace="+namespace)
	}
	if pod != "" {
		command = append(command, "--pod="+pod)
	}
	if f.denied {
		command = append(command, "--denied")
	}
	if f.audit {
		command = append(command, "--audit")
	}
	if f.follow {
		command = append(command, "--follow")
	}
	return command, nil
}

// find returns the agents, at least one.
func (a *agentOptions) find(ctx context.Context) ([]corev1.Pod, runner, error) {
	connect := a.connect
	if connect == nil {
		connect = a.connectToCluster
	}
	agents, run, err := connect(ctx)
	if err == nil && len(agents) == 0 {
		err = fmt.Errorf("--agents-selector=%s: there are no such pods in namespace %s", a.agentsSelector, a.agentsNamespace)
	}
	return agents, run, err
}

// ask runs a command in all agents and returns their answers ordered by node. It names
// agents that did not answer on standard error, and returns an error if none did.
func (a *agentOptions) ask(cmd *cobra.Command, command []string) ([]answer, error) {
	agents, run, err := a.find(cmd.Context())
	if err != nil {
		return nil, err
	}
	done := a.progress("Asking the agents")
	answers := askAll(cmd.Context(), agents, run, command)
	done()
	some := false
	for i := range answers {
		if err := answers[i].err; err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "No answer of node %s: %s: %s\n", answers[i].node, answers[i].pod, printable.Text(err.Error()))
		} else {
			some = true
		}
	}
	if !some {
		return nil, errors.New("no agent has answered")
	}
	return answers, nil
}

// connectToCluster lists the agents of the kubeconfig's cluster.
func (a *agentOptions) connectToCluster(ctx context.Context) ([]corev1.Pod, runner, error) {
	c, err := a.options.connect()
	if err != nil {
		return nil, nil, err
	}
	list, err := c.client.CoreV1().Pods(a.agentsNamespace).List(ctx, metav1.ListOptions{LabelSelector: a.agentsSelector})
	if err != nil {
		return nil, nil, fmt.Errorf("list the agents: %w", err)
	}
	return list.Items, execIn(c.access, c.client), nil
}

// execIn runs commands through the API server.
func execIn(access *rest.Config, client kubernetes.Interface) runner {
	return func(ctx context.Context, pod *corev1.Pod, command []string, out, errs io.Writer) error {
		in, open := io.Pipe() // a command that follows flows ends when its input ends
		defer open.Close()
		return cluster.Exec(ctx, access, client, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, agentContainer, command,
			remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: errs})
	}
}

// answer is the answer of an agent.
type answer struct {
	node, pod string
	records   []flows.Record
	err       error
}

func (a answer) failed() bool { return a.err != nil }

// askAll runs a command in all agents and returns their answers ordered by node.
func askAll(ctx context.Context, agents []corev1.Pod, run runner, command []string) []answer {
	return askWithin(ctx, agentTimeout, agents, run, command)
}

// askWithin is askAll with a time that each agent may take.
func askWithin(ctx context.Context, timeout time.Duration, agents []corev1.Pod, run runner, command []string) []answer {
	answers := make([]answer, len(agents))
	var group errgroup.Group
	group.SetLimit(agentsAtOnce)
	for i := range agents {
		pod := &agents[i]
		answers[i].node, answers[i].pod = pod.Spec.NodeName, pod.Namespace+"/"+pod.Name
		group.Go(func() error {
			answers[i].records, answers[i].err = askOne(ctx, timeout, pod, run, command)
			return nil
		})
	}
	_ = group.Wait() // each answer has its own error
	slices.SortFunc(answers, func(a, b answer) int {
		return cmp.Or(strings.Compare(a.node, b.node), strings.Compare(a.pod, b.pod))
	})
	return answers
}

// askOne returns either all records of an agent or an error.
func askOne(ctx context.Context, timeout time.Duration, pod *corev1.Pod, run runner, command []string) ([]flows.Record, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, noAnswer(timeout))
	defer cancel()
	var records []flows.Record
	err := stream(ctx, pod, run, command, func(r *flows.Record) error {
		if len(records) == maxAnswer {
			return fmt.Errorf("more than %d records", maxAnswer)
		}
		records = append(records, *r)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case len(records) == 0 || records[0].Type != flows.TypeAgent:
		return nil, errors.New("it has no records: is it an older version?")
	}
	return records, nil
}

// noAnswer is the cause of a timeout.
func noAnswer(timeout time.Duration) error { return fmt.Errorf("no answer in %v", timeout) }

// stream runs a command in an agent until it ends, and calls yield with each record that it
// prints.
func stream(ctx context.Context, pod *corev1.Pod, run runner, command []string, yield func(*flows.Record) error) error {
	if pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("the pod is %s", cmp.Or(pod.Status.Phase, corev1.PodUnknown))
	}
	out, in := io.Pipe()
	complaint := &capped{limit: maxComplaint}
	stop := context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
	defer stop()
	go func() { in.CloseWithError(run(ctx, pod, command, in, complaint)) }()
	err := flows.Decode(out, yield)
	out.CloseWithError(context.Canceled) // stop reading
	switch complaintText := complaint.text(); {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && complaintText != "":
		return fmt.Errorf("%w: %s", err, complaintText)
	}
	return err
}

// capped keeps the first bytes written to it. It may be read concurrently.
type capped struct {
	limit int

	mu   sync.Mutex
	kept []byte
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, p[:min(len(p), c.limit-len(c.kept))]...)
	return len(p), nil
}

func (c *capped) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.TrimSpace(string(c.kept))
}
