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

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"sigs.k8s.io/kube-network-policies/cmd/internal/buildversion"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/tests/netpol/cluster"
)

// doctorOptions are the flags of the command doctor.
type doctorOptions struct {
	agentOptions
	image   string
	connect bool
	bundle  string
	output  string

	// reach returns the live cluster. Nil stands for that of the kubeconfig.
	reach func() (*doctorCluster, error)
}

// doctorCluster is a cluster that is examined.
type doctorCluster struct {
	client  kubernetes.Interface
	objects dynamic.Interface
	// exec runs a command in a container of a pod.
	exec func(ctx context.Context, pod types.NamespacedName, container string, command []string, out, errs io.Writer) error
	// read returns what decides about connections.
	read func(context.Context) (clusterstate.Input, error)
}

func newDoctor(o *options) *cobra.Command {
	return newDoctorWith(&doctorOptions{agentOptions: agentOptions{options: o}})
}

func newDoctorWith(d *doctorOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out whether the installation in the live cluster enforces policies",
		Long: `Find out whether the installation in the live cluster enforces policies. Show a line for each
agent: its node and version, how many pods of the node it knows, since when it decides by its
latest snapshot of the cluster, and whether it is ready. Compare the versions of agents, status
writer, plugin, API server and definitions of policies, and show what agents found on their nodes.

Then make connections between pods on all nodes, without policies and with them, and compare
the outcomes with what the policies of the cluster mean. The pods are in a namespace of their
own, which is deleted at the end, also when the command is interrupted.

Each finding is a sentence that says what is wrong, where, and what to do. The exit code is 0
without findings, 1 with some, and 2 when there are none, but something could not be examined.`,
		Example: `  kubectl netpol doctor
  kubectl netpol doctor --connect=false --bundle netpol.tar.gz`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	fs := cmd.Flags()
	fs.BoolVar(&d.connect, "connect", true, "make connections between pods on all nodes; when false, nothing is created")
	fs.StringVar(&d.image, "image", "registry.k8s.io/e2e-test-images/agnhost:2.66.1", "image of these pods: agnhost of Kubernetes. If nodes cannot pull it, what it would show is not known")
	fs.StringVar(&d.bundle, "bundle", "", "`FILE` to write (tar.gz) with what the report of a fault needs: the findings, conditions of policies, and metrics, tables and logs of the agents, without secrets. One that exists is an error")
	d.addAgentFlags(fs)
	fs.StringVarP(&d.output, "output", "o", "text", "text or json")
	return cmd
}

func (d *doctorOptions) run(cmd *cobra.Command) error {
	if err := checkOutput("doctor", d.output); err != nil {
		return err
	}
	if len(d.files) > 0 {
		return errors.New("--filename: only a live cluster is examined")
	}
	reach := d.reach
	if reach == nil {
		reach = d.liveDoctor
	}
	c, err := reach()
	if err != nil {
		return err
	}
	found, err := d.examine(cmd.Context(), c)
	if err != nil {
		return err
	}
	if d.output == "json" {
		err = printJSON(cmd.OutOrStdout(), found.diagnosis)
	} else {
		err = found.write(cmd.OutOrStdout())
	}
	if d.bundle != "" {
		err = errors.Join(err, found.writeBundle(cmd.Context(), d.bundle))
	}
	switch {
	case err != nil:
		return err
	case len(found.Findings) > 0:
		return errNo
	case len(found.Unknown) > 0:
		return errDepends
	}
	return nil
}

// examine looks at everything. It returns an error if it cannot begin.
func (d *doctorOptions) examine(ctx context.Context, c *doctorCluster) (*examination, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	agents, err := c.client.CoreV1().Pods(d.agentsNamespace).List(ctx, metav1.ListOptions{LabelSelector: d.agentsSelector})
	if err != nil {
		return nil, fmt.Errorf("list the agents: %w", err)
	}
	nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return n.Labels[corev1.LabelOSStable] == "windows" })
	x := &examination{doctorOptions: d, cluster: c, nodes: nodes.Items, agents: agents.Items,
		diagnosis: &diagnosis{Plugin: buildversion.Version(), Findings: []string{}, Unknown: []string{}}}
	done := d.progress("Asking the agents")
	x.askAgents(ctx)
	x.checkNodes()
	x.checkWriter(ctx)
	x.checkDefinitions(ctx)
	x.checkVersions()
	done()
	if d.connect {
		x.tryConnections(ctx)
	}
	return x, nil
}

// examination is a run of the command.
type examination struct {
	*doctorOptions
	*diagnosis
	cluster *doctorCluster
	nodes   []corev1.Node
	agents  []corev1.Pod
	writers []corev1.Pod
	metrics [][]byte // of each of Agents
}

// diagnosis is the answer.
type diagnosis struct {
	Kubernetes  string            `json:"kubernetes,omitempty"`
	Plugin      string            `json:"plugin"`
	Writer      string            `json:"statusWriter,omitempty"`
	Definitions map[string]string `json:"definitions,omitempty"` // release of network-policy-api by kind
	Agents      []agentState      `json:"agents"`
	// Connections is how many were made.
	Connections int      `json:"connections"`
	Findings    []string `json:"findings"`
	Unknown     []string `json:"unknown"` // what could not be examined
}

// find adds a finding: what is wrong where, and what to do.
func (d *diagnosis) find(where, what, do string) {
	d.Findings = append(d.Findings, printable.Text(fmt.Sprintf("%s: %s: %s", where, what, do)))
}

// cannotSay adds what could not be examined.
func (d *diagnosis) cannotSay(what string, err error) {
	d.Unknown = append(d.Unknown, printable.Text(fmt.Sprintf("%s: %v", what, err)))
}

// write writes the answer as text.
func (d *diagnosis) write(w io.Writer) error {
	out := bufio.NewWriter(w)
	writeAgents(out, d.Agents)
	fmt.Fprintf(out, "API server %s, status writer %s, plugin %s", cmp.Or(d.Kubernetes, "?"), cmp.Or(d.Writer, "none"), d.Plugin)
	for _, kind := range sortedKeys(d.Definitions) {
		fmt.Fprintf(out, ", %s %s", kind, d.Definitions[kind])
	}
	fmt.Fprintf(out, "\n%s made\n", words.Count(d.Connections, "connection", "connections"))
	for _, text := range d.Findings {
		fmt.Fprintf(out, "Finding: %s\n", text)
	}
	for _, text := range d.Unknown {
		fmt.Fprintf(out, "Not known: %s\n", text)
	}
	if len(d.Findings)+len(d.Unknown) == 0 {
		fmt.Fprintln(out, "Healthy")
	}
	return out.Flush()
}

func writeAgents(out *bufio.Writer, agents []agentState) {
	rows := [][]string{{"NODE", "AGENT", "VERSION", "PODS", "SNAPSHOT", "READY"}}
	for _, a := range agents {
		row := []string{a.Node, a.Pod, cmp.Or(a.Version, "?"), "?", "?", "yes"}
		if a.Pods != nil {
			row[3], row[4] = fmt.Sprint(*a.Pods), "none"
		}
		if a.Snapshot != nil {
			row[4] = duration.HumanDuration(a.age) + " ago"
		}
		if a.NotReady != "" {
			row[5] = "no: " + a.NotReady
		}
		rows = append(rows, row)
	}
	writeColumns(out, rows)
}

// liveDoctor returns the kubeconfig's cluster.
func (d *doctorOptions) liveDoctor() (*doctorCluster, error) {
	// No rate limit: there are two pods on each node.
	c, err := d.options.connect(func(access *rest.Config) { access.QPS, access.Burst = -1, 0 })
	if err != nil {
		return nil, err
	}
	return &doctorCluster{
		client: c.client, objects: c.objects,
		exec: func(ctx context.Context, pod types.NamespacedName, container string, command []string, out, errs io.Writer) error {
			return cluster.Exec(ctx, c.access, c.client, pod, container, command, remotecommand.StreamOptions{Stdout: out, Stderr: errs})
		},
		read: func(ctx context.Context) (clusterstate.Input, error) {
			in, err := d.live(ctx)
			if err == nil && len(d.limits) > 0 {
				err = errors.New(strings.Join(d.limits, "; "))
			}
			return in, err
		},
	}, nil
}
