package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/internal/featuregates"
	"sigs.k8s.io/kube-network-policies/cmd/internal/kindflags"
	"sigs.k8s.io/kube-network-policies/pkg/clusterfiles"
	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/workloads"
)

// options are the flags of all commands: where the cluster comes from.
type options struct {
	files      []string
	kubeconfig string
	context    string
	namespace  string
	everywhere bool // all namespaces
	features   compile.Features
	kinds      kindflags.Flags

	// defaultNamespace is that of the kubeconfig's context.
	defaultNamespace string
	// named are the sides and policies that a command is about, "namespace/name". Their
	// namespaces are read if the user may not read all.
	named []string
	// templates says that workloads of the live cluster count that have no pods.
	templates bool

	// limits say what could not be read of the live cluster and what that means, a
	// sentence each. serviceLimit is that of Services.
	limits       []string
	serviceLimit string
	services     []*corev1.Service
	// selectors are those by which workloads know their pods, as far as they were read.
	selectors map[workloads.Ref]*metav1.LabelSelector
	// findings are the parts of the policies in force that are not enforced as written.
	findings   []reachability.Finding
	ifEnforced []reachability.Change // what would change if audited policies were enforced
	// upcoming are policies that will be applied to the cluster.
	upcoming []compile.Object
	// notes is where what is to be said about the input is written: the standard error.
	notes io.Writer
}

// onlyFiles are the arguments of a command that reads what -f names.
func onlyFiles(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: files and directories are named by -f", args[0])
	}
	return nil
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	o.features = compile.AllFeatures()
	fs.StringArrayVarP(&o.files, "filename", "f", nil, "file, directory of manifests or of a kustomization (workloads, pods, namespaces, nodes, Services, policies of every kind) to read instead of the live cluster; - is standard input; may be repeated. A malformed manifest is an error with its file and line")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file for the live cluster; empty uses the same files as kubectl")
	fs.StringVar(&o.context, "context", "", "context of the kubeconfig; empty uses the current context. One that does not exist is an error")
	fs.StringVarP(&o.namespace, "namespace", "n", "", "namespace of pods that are named without one, and of objects in files that name none; commands that list or show many objects take those of this namespace only")
	fs.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "show all namespaces, as without -n; an error with -n")
	o.kinds = kindflags.Add(fs, "include %s; when false, these policies are ignored, as by agents without this flag", true)
	featuregates.AddFlag(fs, &o.features, "Use the value of the agents: with another one, answers differ from what they enforce")
}

// read returns the cluster of the files, or the live one.
func (o *options) read(ctx context.Context, stdin io.Reader) (clusterstate.Input, error) {
	if o.everywhere && o.namespace != "" {
		return clusterstate.Input{}, fmt.Errorf("--all-namespaces: not with --namespace=%s", o.namespace)
	}
	if len(o.files) == 0 {
		defer o.progress("Reading the cluster")()
		return o.live(ctx)
	}
	return o.readFiles(o.files, stdin)
}

func (o *options) readFiles(paths []string, stdin io.Reader) (clusterstate.Input, error) {
	objects, err := o.readObjects(paths, stdin)
	if err != nil {
		return clusterstate.Input{}, err
	}
	return o.input(objects), nil
}

// input returns the cluster of the objects.
func (o *options) input(objects *clusterfiles.Objects) clusterstate.Input {
	return clusterstate.Input{
		Features:   o.features,
		Namespaces: objects.Namespaces,
		Pods:       objects.Pods,
		Nodes:      objects.Nodes,
		Policies:   objects.Policies,
	}
}

// readObjects reads files, says what is to be said about them, and leaves out the kinds
// of policy that are disabled.
func (o *options) readObjects(paths []string, stdin io.Reader) (*clusterfiles.Objects, error) {
	objects, err := o.readSilently(paths, stdin)
	if err != nil {
		return nil, err
	}
	o.services, o.selectors = objects.Services, objects.Selectors
	o.printNotes(objects)
	return objects, nil
}

func (o *options) printNotes(objects *clusterfiles.Objects) {
	for _, note := range objects.Notes() {
		fmt.Fprintln(o.notes, note)
	}
}

func (o *options) readSilently(paths []string, stdin io.Reader) (*clusterfiles.Objects, error) {
	objects, err := clusterfiles.Read(paths, stdin, o.namespace, o.upcoming...)
	if err != nil {
		return nil, err
	}
	enabled := o.kinds.Enabled()
	objects.Policies = slices.DeleteFunc(objects.Policies, func(p compile.Object) bool {
		return !compile.KindOf(p).Enabled(enabled)
	})
	return objects, nil
}

// qualified returns the name of a side with its namespace.
func (o *options) qualified(name string) string {
	if strings.ContainsAny(name, "/:") || isAddress(name) {
		return name
	}
	return cmp.Or(o.namespace, o.defaultNamespace, metav1.NamespaceDefault) + "/" + name
}

// traffic are the flags that select connections.
type traffic struct {
	port     string
	protocol string
	family   string
}

func (t *traffic) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&t.port, "port", "", "port of the destination: a number, or a name that is looked up on each destination pod")
	fs.StringVar(&t.protocol, "protocol", "TCP", "TCP, UDP, SCTP or ICMP, which has no port")
	fs.StringVar(&t.family, "family", "", "IPv4 or IPv6; empty takes for each connection the first that both sides have, IPv4 before IPv6")
}

func (t *traffic) parse() (reachability.Port, reachability.Family, error) {
	family, err := parseFamily(t.family)
	if err != nil {
		return reachability.Port{}, "", err
	}
	port, err := reachability.ParsePort(t.port, t.protocol)
	return port, family, err
}

func parseFamily(s string) (reachability.Family, error) {
	for _, f := range []reachability.Family{reachability.FirstCommon, reachability.IPv4, reachability.IPv6} {
		if strings.EqualFold(s, string(f)) {
			return f, nil
		}
	}
	return "", fmt.Errorf("--family=%s: must be IPv4 or IPv6", s)
}

// outputs are the forms of output of each command.
var outputs = map[string][]string{
	"matrix":  {"table", "wide", "list", "markdown", "csv", "json", "yaml", "dot", "mermaid"},
	"explain": {"text", "json"},
	"diff":    {"text", "markdown", "json"},
	"check":   {"text", "json", "sarif", "github"},
	"assert":  {"text", "json", "junit", "github"},
	"view":    {"page", "html"},
	"flows":   {"text", "json"},
	"unused":  {"text", "json"},
}

// checkOutput refuses a form of output that a command does not have.
func checkOutput(command, output string) error {
	if slices.Contains(outputs[command], output) {
		return nil
	}
	return fmt.Errorf("--output=%s: must be one of %s", output, strings.Join(outputs[command], ", "))
}
