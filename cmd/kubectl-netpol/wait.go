package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

const (
	// waitInterval is how often the cluster is asked.
	waitInterval = time.Second
	// waitAgentTimeout is how long one agent may take: one that hangs delays the answers of the
	// others, and is named within five seconds.
	waitAgentTimeout = 3 * time.Second
	// defaultWait is the default of --timeout.
	defaultWait = 30 * time.Second
)

// waitOptions are the flags of the command wait.
type waitOptions struct {
	agentOptions
	condition string
	timeout   time.Duration

	// cluster returns the live cluster. Nil stands for that of the kubeconfig.
	cluster func() (waitCluster, error)
}

// waitCluster is what is read of a cluster.
type waitCluster interface {
	// Policy returns a policy, as it is served.
	Policy(ctx context.Context, kind *compile.Kind, namespace, name string) (*unstructured.Unstructured, error)
	// Namespace returns a namespace.
	Namespace(ctx context.Context, name string) (metav1.Object, error)
	// Nodes returns the names of all nodes.
	Nodes(ctx context.Context) ([]string, error)
}

func newWait(o *options) *cobra.Command {
	w := &waitOptions{agentOptions: agentOptions{options: o}}
	cmd := &cobra.Command{
		Use:   "wait (-f FILE | KIND/NAME...) --for=enforced",
		Short: "Wait until policies of the live cluster are in force on all nodes",
		Long: `Wait until policies of the live cluster are in force on all nodes: those in files (-f),
which must be applied already as they are there, or those that are named. Packets are then
decided by them, on new and on established connections.

The agents are asked by a command that runs in their pods, and the nodes are listed. Who has
no right to do so learns it from the condition Enforced of the policy, which the status writer
sets. A NetworkPolicy of an API server without a status for it has the condition if it is
annotated with ` + compile.ReportAnnotation + `=` + compile.ReportEnforced + `.

The exit code is 0 when all are in force on all nodes, 1 when they are not in time, and 2 when
that cannot be known or a policy of a file is not applied as it is there. The nodes and reasons
are named on standard error.`,
		Example: `  kubectl netpol wait -f policies/ --for=enforced --timeout=1m
  kubectl netpol wait -n shop networkpolicy/db --for=enforced`,
		RunE: func(cmd *cobra.Command, args []string) error { return w.run(cmd, args) },
	}
	fs := cmd.Flags()
	fs.StringVar(&w.condition, "for", "", "what to wait for: enforced")
	fs.DurationVar(&w.timeout, "timeout", defaultWait, "how long to wait; zero asks once")
	w.addAgentFlags(fs)
	return cmd
}

func (w *waitOptions) run(cmd *cobra.Command, args []string) error {
	switch {
	case w.condition != "enforced":
		return fmt.Errorf("--for=%s: must be enforced", w.condition)
	case w.timeout < 0:
		return fmt.Errorf("--timeout=%v: must not be negative", w.timeout)
	case (len(w.files) > 0) == (len(args) > 0):
		return errors.New("name policies either by files (-f) or by KIND/NAME")
	}
	policies, err := w.policies(cmd.InOrStdin(), args)
	if err != nil {
		return err
	}
	connect := w.cluster
	if connect == nil {
		connect = w.liveCluster
	}
	cluster, err := connect()
	if err != nil {
		return err
	}
	return (&waiting{waitOptions: w, cluster: cluster, policies: policies, notes: cmd.ErrOrStderr()}).run(cmd)
}

// awaited is a policy on the command line or in a file.
type awaited struct {
	kind            *compile.Kind
	namespace, name string
	file            compile.Object // nil if it is on the command line
}

func (p awaited) String() string {
	return strings.ToLower(p.kind.Name) + "/" + strings.TrimPrefix(p.namespace+"/"+p.name, "/")
}

// policies returns the policies in the files, or the named ones.
func (w *waitOptions) policies(stdin io.Reader, args []string) (found []awaited, err error) {
	w.namespace = cmp.Or(w.namespace, w.contextNamespace(), metav1.NamespaceDefault)
	for _, arg := range args {
		kindName, name, _ := strings.Cut(arg, "/")
		kind := policyKind(kindName)
		if kind == nil || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q: must be KIND/NAME, with a kind of policy: %s", arg, strings.Join(policyKinds(), ", "))
		}
		p := awaited{kind: kind, name: name}
		if kind.Namespaced {
			p.namespace = w.namespace
		}
		found = append(found, p)
	}
	if len(args) > 0 {
		return found, nil
	}
	objects, err := w.readObjects(w.files, stdin)
	if err != nil {
		return nil, err
	}
	for _, o := range objects.Policies {
		found = append(found, awaited{compile.KindOf(o), o.GetNamespace(), o.GetName(), o})
	}
	if len(found) == 0 {
		return nil, errors.New("--filename: there are no policies")
	}
	return found, nil
}

// policyKind returns the kind that kubectl calls name, nil if it is none of policies.
func policyKind(name string) *compile.Kind {
	short := map[string]string{"netpol": "networkpolicy", "anp": "adminnetworkpolicy", "banp": "baselineadminnetworkpolicy", "cnp": "clusternetworkpolicy"}
	name = strings.ToLower(name)
	name = cmp.Or(short[name], name)
	for _, k := range compile.Kinds {
		if name == strings.ToLower(k.Name) || name == k.Resource.Resource {
			return k
		}
	}
	return nil
}

func policyKinds() (names []string) {
	for _, k := range compile.Kinds {
		names = append(names, strings.ToLower(k.Name))
	}
	return names
}

// waiting is a run of the command.
type waiting struct {
	*waitOptions
	cluster  waitCluster
	policies []awaited
	notes    io.Writer

	printed map[awaited]string // the last line about each
}

// enforcement is how far a policy is in force.
type enforcement struct {
	inForce bool
	known   bool // where it is not, and why
	text    string
}

func (w *waiting) run(cmd *cobra.Command) error {
	ctx := cmd.Context()
	w.printed = map[awaited]string{}
	end := time.Now().Add(w.timeout)
	for {
		states, err := w.ask(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(states, func(e enforcement) bool { return !e.inForce }) {
			for i, p := range w.policies {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", p, states[i].text)
			}
			return nil
		}
		for i, p := range w.policies {
			if w.printed[p] != states[i].text {
				w.printed[p] = states[i].text
				fmt.Fprintf(w.notes, "%s: %s\n", p, states[i].text)
			}
		}
		if rest := time.Until(end); rest <= 0 {
			return notInTime(states)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(waitInterval, time.Until(end))):
		}
	}
}

// notInTime returns the error at the end of the wait.
func notInTime(states []enforcement) error {
	if slices.ContainsFunc(states, func(e enforcement) bool { return e.known && !e.inForce }) {
		return errNo
	}
	return errors.New("it cannot be known whether all policies are in force")
}

// ask returns how far each policy is in force: what the agents say, or else its condition.
func (w *waiting) ask(ctx context.Context) ([]enforcement, error) {
	objects := make([]*unstructured.Unstructured, len(w.policies))
	for i, p := range w.policies {
		o, err := w.cluster.Policy(ctx, p.kind, p.namespace, p.name)
		if err == nil {
			err = p.differs(o)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		objects[i] = o
	}
	nodes, err := w.askNodes(ctx)
	states := make([]enforcement, len(objects))
	for i, o := range objects {
		if err != nil {
			states[i] = byCondition(w.policies[i], o, err)
			continue
		}
		var errNodes error
		if states[i], errNodes = w.byNodes(ctx, w.policies[i], o, nodes); errNodes != nil {
			return nil, errNodes
		}
	}
	return states, nil
}

// byCondition reads the Enforced condition. noAsk is why the agents are not asked.
func byCondition(p awaited, o *unstructured.Unstructured, noAsk error) enforcement {
	c := enforcedCondition(o)
	switch {
	case c == nil && p.kind.Namespaced && !compile.ReportsEnforced(o, nil):
		return enforcement{text: fmt.Sprintf("nothing says whether it is in force: agents are not asked (%v), and it has no condition; annotate it with %s=%s", noAsk, compile.ReportAnnotation, compile.ReportEnforced)}
	case c == nil:
		return enforcement{text: fmt.Sprintf("the status writer has not said whether it is in force, and agents are not asked (%v)", noAsk)}
	case c.ObservedGeneration != o.GetGeneration():
		return enforcement{text: fmt.Sprintf("the status writer has not said whether generation %d is in force", o.GetGeneration())}
	}
	message := printable.Text(c.Message)
	return enforcement{inForce: c.Status == metav1.ConditionTrue, known: c.Status != metav1.ConditionUnknown, text: message}
}
