package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/cmd/internal/featuregates"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/helmchart"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/base/spelling"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// options are the flags of all commands that say where to read the cluster.
type options struct {
	files      []string
	strict     bool     // warnings about files are errors
	exclude    []string // patterns of files below directories
	helm       string   // chart to read like a last file
	values     helmchart.Values
	kubeconfig string
	context    string
	namespace  string
	everywhere bool // all namespaces
	features   compile.Features
	// adminPolicies includes administrators' policies.
	adminPolicies bool

	// defaultNamespace is the namespace of the kubeconfig's context.
	defaultNamespace string
	// named are the sides and policies that the command line names, "namespace/name". Their
	// namespaces are read if the user may not read all namespaces.
	named []string
	// templates includes workloads of the live cluster that have no pods.
	templates bool

	// limits are sentences that say what could not be read of the live cluster and what that
	// means.
	limits   []string
	services services
	objects  *clusterfiles.Objects // that were read, nil for a live cluster
	// exposing are Ingresses, routes, Gateways and their classes, and exposingLimit says which of
	// them could not be read.
	exposing      []*unstructured.Unstructured
	exposingLimit string
	// selectors are the pod selectors of the workloads that were read, and workloads their labels.
	selectors map[workloads.Ref]*metav1.LabelSelector
	workloads []workloads.Labels
	// findings are the parts of the enforced policies that are not enforced as written.
	findings   []reachability.Finding
	ifEnforced []reachability.Change // the changes if audited policies were enforced
	podCIDRs   []string              // the addresses of pods that have none
	ranges     []netip.Prefix
	// placeholders is the number of placeholders for addresses that other files have.
	placeholders int
	// notes is the destination of notes about the input: standard error.
	notes io.Writer
}

// onlyFiles validates the arguments of a command that reads only the files of -f.
func onlyFiles(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: files and directories are named by -f", args[0])
	}
	return nil
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	o.features = compile.AllFeatures()
	fs.StringArrayVarP(&o.files, "filename", "f", nil, "file, directory of manifests or of a kustomization (workloads, pods, namespaces, nodes, Services, policies of every kind) to read instead of the live cluster; - is standard input; may be repeated: objects of a later one replace those of the same name. A malformed policy is an error with its file and line")
	fs.BoolVar(&o.strict, "strict", false, "refuse files that are no manifests, unknown fields and versions of workloads, objects that are there twice, and kustomizations that cannot be built; when false, these are warnings. What is wrong with policies is always an error")
	fs.StringArrayVar(&o.exclude, "exclude", nil, "pattern of files and folders to leave out of the directories of -f: of their name, such as 'test*', or with a slash of their path there; may be repeated. A malformed one is an error")
	fs.StringVar(&o.helm, "helm", "", "Helm chart to render and read as if it was a last -f: a folder or an archive with the charts that it depends on. Nothing is downloaded; an error if something is missing")
	fs.StringArrayVar(&o.values.Files, "values", nil, "file with values of the chart; may be repeated, and later ones come first")
	fs.StringArrayVar(&o.values.Set, "set", nil, "value of the chart, such as policies.enabled=true; may be repeated, and comes before those of files")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file for the live cluster; empty uses the same files as kubectl")
	fs.StringVar(&o.context, "context", "", "context of the kubeconfig; empty uses the current context. One that does not exist is an error")
	fs.StringVarP(&o.namespace, "namespace", "n", "", "namespace of pods that are named without one, and of objects in files that name none; commands that list or show many objects take those of this namespace only")
	fs.BoolVarP(&o.everywhere, "all-namespaces", "A", false, "show all namespaces, as without -n; an error with -n")
	fs.BoolVar(&o.adminPolicies, "admin-policies", true, "include administrators' policies ("+compile.AdminKindNames()+"); when false, they are ignored, as by agents without this flag")
	fs.StringArrayVar(&o.podCIDRs, "pod-cidr", nil, "range of addresses, such as 10.244.0.0/16, that pods without an address may have; may be repeated. None takes the ranges of the Nodes, else the private ones (RFC 1918, RFC 4193). One that is not a range is an error")
	featuregates.AddFlag(fs, &o.features, "Use the value of the agents: with another one, answers differ from what they enforce")
}

// clientConfig returns the kubeconfig with the context of the command line.
func (o *options) clientConfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.context})
}

// addChart makes the chart the last of the files.
func (o *options) addChart() error {
	if o.helm != "" {
		o.files = append(o.files, o.helm)
	}
	charts := slices.ContainsFunc(o.files, clusterfiles.IsChart)
	switch {
	case o.helm != "" && !clusterfiles.IsChart(o.helm):
		return fmt.Errorf("--helm=%s: neither a folder with a Chart.yaml nor a .tgz", o.helm)
	case !charts && len(o.values.Files)+len(o.values.Set) > 0:
		return errors.New("--values, --set: only with --helm")
	}
	return nil
}

// adminKinds returns the administrators' kinds that are included.
func (o *options) adminKinds() []*compile.Kind {
	if !o.adminPolicies {
		return nil
	}
	return compile.AdminKinds()
}

// read returns the cluster in the files, or the live one.
func (o *options) read(ctx context.Context, stdin io.Reader) (clusterstate.Input, error) {
	if o.everywhere && o.namespace != "" {
		return clusterstate.Input{}, fmt.Errorf("--all-namespaces: not with --namespace=%s", o.namespace)
	}
	var err error
	if o.ranges, err = parseRanges("pod-cidr", o.podCIDRs); err != nil {
		return clusterstate.Input{}, err
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

// cluster returns what answers about in.
func (o *options) cluster(in clusterstate.Input) *reachability.Cluster {
	return reachability.New(in, o.ranges...)
}

// input returns the cluster with these objects.
func (o *options) input(objects *clusterfiles.Objects) clusterstate.Input {
	return clusterstate.Input{
		Features:   o.features,
		Namespaces: objects.Namespaces,
		Pods:       objects.Pods,
		Nodes:      objects.Nodes,
		CIDRGroups: objects.CIDRGroups,
		Policies:   objects.Policies,
	}
}

// readObjects reads files, prints notes about them, and drops policies of disabled kinds.
func (o *options) readObjects(paths []string, stdin io.Reader) (*clusterfiles.Objects, error) {
	objects, err := o.readWith(o.reading(), paths, stdin)
	if err == nil {
		o.take(objects)
	}
	return objects, err
}

// take makes objects of files what is known of the cluster, and prints notes about them.
func (o *options) take(objects *clusterfiles.Objects) {
	o.leaveOutDisabled(objects)
	o.services, o.selectors, o.exposing, o.workloads, o.objects = servicesIn(objects), objects.Selectors, objects.Exposing, objects.Workloads, objects
	o.printNotes(objects)
}

func (o *options) printNotes(objects *clusterfiles.Objects) {
	for _, note := range objects.Notes() {
		fmt.Fprintln(o.notes, note)
	}
	if n := len(objects.Unaddressed); n > 0 {
		fmt.Fprintf(o.notes, "Assumed: %s without an address in %s; --pod-cidr states other ranges\n", words.Count(n, "pod", "pods"), strings.Join(o.assumedRanges(objects), ", "))
	}
}

// assumedRanges returns where pods of files without addresses may be, of the families that they may
// have.
func (o *options) assumedRanges(objects *clusterfiles.Objects) []string {
	v4, v6 := objects.Families()
	var ranges []string
	for _, r := range reachability.PodRanges(o.ranges, o.input(objects)) {
		if r.Addr().Is4() && v4 || r.Addr().Is6() && v6 {
			ranges = append(ranges, r.String())
		}
	}
	return ranges
}

func (o *options) readWith(reading clusterfiles.Options, paths []string, stdin io.Reader) (*clusterfiles.Objects, error) {
	defer o.progress("Reading files")()
	objects, err := clusterfiles.Read(paths, stdin, reading)
	if err != nil {
		return nil, err
	}
	o.leaveOutDisabled(objects)
	return objects, nil
}

// reading says how to read files.
func (o *options) reading() clusterfiles.Options {
	return clusterfiles.Options{Namespace: o.namespace, Strict: o.strict, Exclude: o.exclude, Values: o.values, Placeholders: o.placeholders}
}

// leaveOutDisabled removes the policies of kinds that are disabled.
func (o *options) leaveOutDisabled(objects *clusterfiles.Objects) {
	enabled := o.adminKinds()
	objects.Policies = slices.DeleteFunc(objects.Policies, func(p compile.Object) bool {
		return !compile.KindOf(p).Enabled(enabled)
	})
}

// checkNamespace returns an error if none of the namespaces is that of --namespace, unless none is
// known or some could not be read.
func (o *options) checkNamespace(known []*corev1.Namespace) error {
	const maxDistance = 3 // how many letters may be wrong
	if o.namespace == "" || len(o.limits) > 0 {
		return nil
	}
	var all, near []string
	for _, ns := range known {
		all = append(all, ns.Name)
		if spelling.Distance(ns.Name, o.namespace) <= min(maxDistance, len(o.namespace)/2) {
			near = append(near, ns.Name)
		}
	}
	slices.Sort(all)
	all, near = slices.Compact(all), compacted(near)
	switch {
	case len(all) == 0:
		return nil
	case slices.Contains(all, o.namespace):
		return nil
	case len(near) > 0:
		return fmt.Errorf("--namespace=%s: there is no such namespace; near it: %s", o.namespace, shorten(near))
	}
	return fmt.Errorf("--namespace=%s: there is no such namespace; there are %s", o.namespace, shorten(all))
}

// namespaces returns that of --namespace, or none for all.
func (o *options) namespaces() []string {
	if o.namespace == "" {
		return nil
	}
	return []string{o.namespace}
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

// outputs are the output formats of each command.
var outputs = map[string][]string{
	"matrix":  {"table", "json"},
	"explain": {"text", "json", "policy"},
	"diff":    {"text", "markdown", "json"},
	"check":   {"text", "json", "sarif", "github", "junit"},
	"assert":  {"text", "json", "junit", "github"},
	"view":    {"page", "html"},
	"flows":   {"text", "json"},
	"list":    {"text", "json"},
	"doctor":  {"text", "json"},
}

// checkOutput rejects an output format that the command does not have.
func checkOutput(command, output string) error {
	if slices.Contains(outputs[command], output) {
		return nil
	}
	return fmt.Errorf("--output=%s: must be one of %s", output, strings.Join(outputs[command], ", "))
}
