package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/tool/clusterfiles"
	"sigs.k8s.io/kube-network-policies/pkg/tool/reachability"
)

type diffOptions struct {
	*options
	traffic   traffic
	addresses []string
	replace   bool
	ignoreNew bool
	output    string

	ignored   []string // pods that --ignore-new leaves out
	exposures []exposureChange
}

func newDiff(o *options) *cobra.Command {
	d := &diffOptions{options: o}
	cmd := &cobra.Command{
		Use:   "diff -f POLICIES | diff -f CLUSTER -f POLICIES",
		Short: "Show which connections would change",
		Long: `Show which connections would change if manifests were applied to the live cluster or,
with two -f, to that of the first one.

As with "kubectl apply", policies replace those of the same name, and labels are added
to Namespaces and Nodes. Pods get the labels and ports that their manifests or the
templates of their workloads have. Nothing is deleted. With --replace, the manifests
are all policies that there are then (with -n, all of that namespace): others are
deleted. If there are pods among them, they are the whole cluster.

All ports and protocols are compared: of each range of ports that the policies
treat alike, one port is compared, and likewise of addresses outside of the
cluster. Of nodes, every address is compared. What domain names allow is not
compared: only agents know what pods learn from DNS. --port, --protocol and
--address narrow it down, and -n to connections of the pods of one namespace.

Pods that may come are compared, too: in each namespace a "new pod" without labels,
and where a workload has one pod, a second one. All connections of pods that are added
or removed change, unless --ignore-new leaves these pods out.

The exit code is 0 when nothing that was compared changes, 1 when something does, 2 when there is
no answer.`,
		Example: `  kubectl-netpol diff -f policy.yaml
  kubectl-netpol diff -f cluster.yaml -f policy.yaml -o markdown
  kubectl-netpol diff -f before -f after --replace -o json`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	fs := cmd.Flags()
	d.traffic.addFlags(fs)
	protocol := fs.Lookup("protocol")
	protocol.DefValue, protocol.Usage = "", "TCP, UDP, SCTP or ICMP; empty compares all, and with --port TCP"
	d.traffic.protocol = ""
	fs.Lookup("port").Usage = "port to compare, a number or a name that is looked up on each destination pod; empty compares all"
	fs.StringArrayVar(&d.addresses, "address", nil, "address that is no pod's to compare, or svc/NAME for those behind a Service, may be repeated; none takes those of the nodes, and one of each stretch that the policies' blocks do not divide")
	fs.BoolVar(&d.replace, "replace", false, "the manifests are all policies of the cluster, or of -n: those that are not among them are deleted")
	fs.BoolVar(&d.ignoreNew, "ignore-new", false, "compare only pods that are there before and after")
	fs.StringVarP(&d.output, "output", "o", "text", "text, markdown (for a comment on a pull request) or json")
	return cmd
}

func (d *diffOptions) run(cmd *cobra.Command) error {
	if err := checkOutput("diff", d.output); err != nil {
		return err
	}
	before, after, err := d.clusters(cmd)
	if err != nil {
		return err
	}
	answer, err := d.compare(before, after)
	if err != nil {
		d.printCaveats(cmd.ErrOrStderr())
		return err
	}
	d.findings = d.findingsOf(after)
	if d.ifEnforced, err = d.diffIfEnforced(before, after); err != nil {
		return err
	}
	if d.output != "markdown" {
		d.printCaveats(cmd.ErrOrStderr())
	}
	err = d.print(cmd.OutOrStdout(), &answer)
	if err == nil && len(answer.Changes)+len(d.exposures) > 0 {
		return errNo
	}
	return err
}

func (d *diffOptions) print(w io.Writer, answer *reachability.Difference) error {
	switch d.output {
	case "markdown":
		return printDifferenceMarkdown(w, answer, d.exposures, d.limits, d.notesOf())
	case "json":
		return printJSON(w, d.withCaveats(differenceJSON{answer, d.exposures}))
	}
	return printDifference(w, answer, d.exposures, d.limits, nil)
}

// differenceJSON is a difference as it is printed.
type differenceJSON struct {
	*reachability.Difference
	Exposed []exposureChange `json:"exposed,omitempty"`
}

func (d *diffOptions) compare(before, after *reachability.Cluster) (reachability.Difference, error) {
	defer d.progress("Comparing connections")()
	family, err := parseFamily(d.traffic.family)
	if err != nil {
		return reachability.Difference{}, err
	}
	spans, err := d.spans(before, after)
	if err != nil {
		return reachability.Difference{}, err
	}
	compared, err := d.comparedAddresses(before, after)
	if err != nil {
		return reachability.Difference{}, err
	}
	names := reachability.Names{Pod: workloadOf, Addresses: compared.ranges}
	difference, err := reachability.CompareAs(names, before, after, spans, compared.addresses, family, d.namespaces()...)
	difference.Services = compared.services
	if err == nil && difference.Pods+len(difference.OnlyBefore)+len(difference.OnlyAfter) == 0 {
		err = fmt.Errorf("no pods%s: there is nothing to compare", inNamespace(d.namespace))
	}
	for _, name := range d.ignored {
		if namespace, _, _ := strings.Cut(name, "/"); d.namespace == "" || namespace == d.namespace {
			difference.NotCompared = append(difference.NotCompared, name)
		}
	}
	return difference, err
}

// clusters reads the two clusters.
func (d *diffOptions) clusters(cmd *cobra.Command) (before, after *reachability.Cluster, err error) {
	if len(d.files) != 1 && len(d.files) != 2 {
		return nil, nil, errors.New("--filename: one (manifests to apply to the live cluster) or two (a cluster, and manifests to apply to it) are needed")
	}
	last := len(d.files) - 1
	objects, assumed, err := d.changes(d.files[last], cmd.InOrStdin())
	if err != nil {
		return nil, nil, err
	}
	changes := d.input(objects)
	if len(changes.Policies)+len(changes.CIDRGroups)+len(changes.Pods)+len(objects.Exposing) == 0 && !d.replace {
		return nil, nil, fmt.Errorf("--filename=%s: no policy, workload or Ingress to apply", d.files[last])
	}
	var inputBefore clusterstate.Input
	if last == 0 {
		d.templates = true
		for _, p := range changes.Policies {
			d.named = append(d.named, p.GetNamespace()+"/"+p.GetName())
		}
		inputBefore, err = d.live(cmd.Context())
	} else {
		d.upcoming = changes.Policies
		inputBefore, err = d.readFiles(d.files[:1], cmd.InOrStdin())
	}
	if err != nil {
		return nil, nil, err
	}
	if d.exposingLimit != "" {
		d.limits = append(d.limits, d.exposingLimit)
	}
	var inputAfter clusterstate.Input
	if d.replace {
		inputAfter = replaced(inputBefore, changes, d.namespace)
	} else {
		inputAfter = applied(inputBefore, changes, assumed)
	}
	if d.ignoreNew {
		inputBefore.Pods, inputAfter.Pods, d.ignored = sharedPods(inputBefore.Pods, inputAfter.Pods)
	}
	servicesBefore := d.services.list
	services := servicesIn(objects)
	d.services.add(&services)
	podsBefore, podsAfter := inputBefore.Pods, inputAfter.Pods
	inputBefore, inputAfter = reachability.AddNewPods(inputBefore, inputAfter, d.namespaces()...)
	before, after = reachability.New(inputBefore), reachability.New(inputAfter)
	exposingAfter := d.exposingAfter(objects.Exposing, d.replace && len(changes.Pods) > 0)
	d.exposures = exposureChanges(
		d.exposed(before, podsBefore, servicesBefore, d.exposing, d.compared(podsBefore)),
		d.exposed(after, podsAfter, d.services.list, exposingAfter, d.compared(podsAfter)),
	)
	return before, after, nil
}

// exposingAfter returns the Ingresses and routes after those of changes were applied, or these alone
// if they are all.
func (d *diffOptions) exposingAfter(changes []*unstructured.Unstructured, all bool) []*unstructured.Unstructured {
	if all {
		return changes
	}
	key := func(o *unstructured.Unstructured) [3]string {
		return [3]string{o.GetKind(), o.GetNamespace(), o.GetName()}
	}
	replaced := map[[3]string]bool{}
	for _, o := range changes {
		replaced[key(o)] = true
	}
	kept := slices.DeleteFunc(slices.Clone(d.exposing), func(o *unstructured.Unstructured) bool { return replaced[key(o)] })
	return append(kept, changes...)
}

// changes reads what is applied to a cluster, and the names of the pods whose addresses are
// assumed. What the file does not have is there, so that nothing is said to be assumed.
func (d *diffOptions) changes(path string, stdin io.Reader) (objects *clusterfiles.Objects, assumed []string, err error) {
	objects, err = d.readSilently([]string{path}, stdin)
	if err != nil {
		return nil, nil, err
	}
	assumed = objects.Unaddressed
	if !d.replace {
		objects.AssumedPods, objects.Unaddressed, objects.AssumedNamespaces, objects.AssumedNodes = nil, nil, nil, nil
	}
	d.printNotes(objects)
	return objects, assumed, nil
}

// namespaces returns the namespaces whose connections are compared, or none for all.
func (d *diffOptions) namespaces() []string {
	if d.namespace == "" {
		return nil
	}
	return []string{d.namespace}
}

// compared returns the names of the pods in the namespaces that are compared, nil for all.
func (d *diffOptions) compared(pods []*corev1.Pod) map[string]bool {
	if d.namespace == "" {
		return nil
	}
	names := map[string]bool{}
	for _, p := range pods {
		if p.Namespace == d.namespace {
			names[p.Namespace+"/"+p.Name] = true
		}
	}
	return names
}

// spans returns the traffic to compare.
func (d *diffOptions) spans(before, after *reachability.Cluster) ([]reachability.PortRange, error) {
	if d.traffic.port != "" {
		port, err := reachability.ParsePort(d.traffic.port, cmp.Or(d.traffic.protocol, packet.TCP.String()))
		return []reachability.PortRange{reachability.PortRangeOf(port)}, err
	}
	spans := reachability.PortRanges(before, after)
	if d.traffic.protocol == "" {
		return spans, nil
	}
	spans = slices.DeleteFunc(spans, func(s reachability.PortRange) bool {
		return !strings.EqualFold(d.traffic.protocol, s.Proto.String())
	})
	if len(spans) > 0 {
		return spans, nil
	}
	// No policy names a port of the protocol, so any port represents all.
	port, err := reachability.ParsePort("1", d.traffic.protocol)
	return []reachability.PortRange{{Proto: port.Proto, First: 1, Last: 65535}}, err
}
