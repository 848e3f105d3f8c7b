package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

type diffOptions struct {
	*options
	traffic   traffic
	addresses []string
	replace   bool
	ignoreNew bool
	output    string

	ignored []string // pods that --ignore-new leaves out
	// servicesBefore are those of the cluster before, as services are of that after.
	servicesBefore services
	others         otherChanges
}

// otherChanges are what changes beside connections of pods, and what could not be compared.
type otherChanges struct {
	exposures []exposureChange
	services  []serviceChange
	limits    []string // what could not be read
	// notCompared are what files have and could not be read, and Services behind which nothing is
	// known.
	notCompared []string
}

func (o *otherChanges) none() bool { return len(o.exposures)+len(o.services) == 0 }

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
	d.others.limits = d.limits
	err = d.print(cmd.OutOrStdout(), &answer)
	if err == nil && (len(answer.Changes) > 0 || !d.others.none()) {
		return errNo
	}
	return err
}

func (d *diffOptions) print(w io.Writer, answer *reachability.Difference) error {
	switch d.output {
	case "markdown":
		return printDifferenceMarkdown(w, answer, &d.others, d.notesOf())
	case "json":
		return printJSON(w, d.withCaveats(differenceJSON{answer, d.others.exposures, d.others.services, d.others.notCompared}))
	}
	return printDifference(w, answer, &d.others)
}

// differenceJSON is a difference as it is printed.
type differenceJSON struct {
	*reachability.Difference
	Exposed           []exposureChange `json:"exposed,omitempty"`
	ServicesReached   []serviceChange  `json:"servicesReached,omitempty"`
	OthersNotCompared []string         `json:"othersNotCompared,omitempty"`
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
	difference, err := reachability.Compare(names, before, after, spans, compared.addresses, family, d.namespaces()...)
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
	if d.ranges, err = parseRanges("pod-cidr", d.podCIDRs); err != nil {
		return nil, nil, err
	}
	objects, assumed, err := d.changes(d.files[len(d.files)-1], cmd.InOrStdin())
	if err != nil {
		return nil, nil, err
	}
	changes := d.input(objects)
	inputBefore, err := d.unchanged(cmd, changes)
	if err != nil {
		return nil, nil, err
	}
	var inputAfter clusterstate.Input
	if d.replace {
		inputAfter = replaced(inputBefore, changes, d.namespace)
	} else {
		inputAfter = applied(inputBefore, changes, assumed)
	}
	if err := d.checkNamespace(slices.Concat(inputBefore.Namespaces, inputAfter.Namespaces)); err != nil {
		return nil, nil, err
	}
	if d.ignoreNew {
		inputBefore.Pods, inputAfter.Pods, d.ignored = sharedPods(inputBefore.Pods, inputAfter.Pods)
	}
	podsBefore, podsAfter := inputBefore.Pods, inputAfter.Pods
	inputBefore, inputAfter = reachability.AddNewPods(inputBefore, inputAfter, d.namespaces()...)
	before, after = d.cluster(inputBefore), d.cluster(inputAfter)
	inputBefore.Pods, inputAfter.Pods = podsBefore, podsAfter
	return before, after, d.compareServices(before, after, inputBefore, inputAfter, objects)
}

// unchanged reads the cluster before the changes.
func (d *diffOptions) unchanged(cmd *cobra.Command, changes clusterstate.Input) (in clusterstate.Input, err error) {
	if len(d.files) == 1 {
		d.templates = true
		for _, p := range changes.Policies {
			d.named = append(d.named, p.GetNamespace()+"/"+p.GetName())
		}
		if in, err = d.live(cmd.Context()); clientcmd.IsEmptyConfig(errors.Unwrap(err)) {
			err = fmt.Errorf("the cluster to which %s is applied (another -f before it names one): %w", d.files[0], err)
		}
	} else {
		in, err = d.readFiles(d.files[:1], cmd.InOrStdin())
	}
	if d.exposingLimit != "" {
		d.limits = append(d.limits, d.exposingLimit)
	}
	return in, err
}

// compareServices compares what Ingresses, routes, Services and host ports expose, and who reaches Services, in
// clusters whose pods are those of the inputs and new ones.
func (d *diffOptions) compareServices(before, after *reachability.Cluster, inputBefore, inputAfter clusterstate.Input, changes *clusterfiles.Objects) error {
	family, err := parseFamily(d.traffic.family)
	if err != nil {
		return err
	}
	services, exposing := servicesIn(changes), changes.Exposing
	d.servicesBefore = d.services
	if d.replace && len(changes.Pods) > 0 { // they are the whole cluster
		d.services = services
	} else {
		d.services.add(&services)
		exposing = replacing(d.exposing, exposing)
	}
	was := d.exposed(before, inputBefore, &d.servicesBefore, d.exposing, nil)
	is := d.exposed(after, inputAfter, &d.services, exposing, nil)
	d.others.exposures = exposureChanges(was, is)
	finderBefore, finderAfter := d.sideFinder(before, inputBefore.Pods), d.sideFinder(after, inputAfter.Pods)
	finderBefore.services = d.servicesBefore
	d.others.services = d.serviceChanges(finderBefore, finderAfter, family)
	for _, x := range append(was, is...) {
		if len(x.Pods) == 0 {
			d.others.notCompared = append(d.others.notCompared, exposureText(&x))
		}
	}
	for _, skipped := range changes.Skipped {
		if strings.Contains(skipped.What, "NetworkPolicy") { // of other projects
			d.others.notCompared = append(d.others.notCompared, skipped.String())
		}
	}
	if len(changes.Warnings) > 0 || d.objects != nil && len(d.objects.Warnings) > 0 {
		d.others.notCompared = append(d.others.notCompared, "what the warnings are about")
	}
	d.others.notCompared = compacted(d.others.notCompared)
	return nil
}

// changes reads what is applied to a cluster, and the names of the pods whose addresses are
// assumed. What the file does not have is there, so that nothing is said to be assumed.
func (d *diffOptions) changes(path string, stdin io.Reader) (objects *clusterfiles.Objects, assumed []string, err error) {
	reading := d.reading()
	reading.OnlyOthers = true
	objects, err = d.readWith(reading, []string{path}, stdin)
	if err != nil {
		return nil, nil, err
	}
	assumed = d.toBePlaced(objects, len(d.files) == 1)
	d.placeholders = len(objects.Unaddressed)
	if !d.replace {
		objects.AssumedPods, objects.Unaddressed, objects.AssumedNamespaces, objects.AssumedNodes = nil, nil, nil, nil
	}
	d.printNotes(objects)
	return objects, assumed, nil
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
