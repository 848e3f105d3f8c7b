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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

type checkOptions struct {
	*options
	output       string
	failOn       string
	disabled     []string
	serviceCIDRs []string
	baseline     string
	listRules    bool
}

// failLevels maps each value of --fail-on to the lowest severity that fails.
var failLevels = map[string]lint.Severity{"error": lint.Error, "warning": lint.Warning, "info": lint.Info, "none": lint.Error + 1}

func newCheck(o *options) *cobra.Command {
	c := &checkOptions{options: o}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Find mistakes in policies, and the parts that are not enforced as written",
		Long: `Find mistakes in policies: the parts that the agents do not enforce as written, and
what is enforced as written and is probably not what was meant. Each finding has a rule,
a severity, the place in the file, the reason and what to write instead. docs/lints.md has
an example of each rule. With -n, findings about other namespaces and cluster-scoped
policies are left out.

A comment "# netpol:ignore RULE reason" above or on the line of a field ignores the
findings of the rule there, and above an object those about all of it. So does an
annotation ` + lint.IgnoreAnnotation + `RULE: reason of the object.

With --baseline, findings that are known are only counted: those of what -o json printed
once, wherever in their objects they are now.

The exit code is 0 without findings of the severity of --fail-on or a higher one, 1
with such findings, and 2 when the manifests or the cluster cannot be read or have no
policy.

Rules:
` + ruleTable(),
		Example: `  kubectl-netpol check -f ./manifests
  kubectl-netpol check -f ./manifests -o github --fail-on error
  git show HEAD:policy.yaml | kubectl-netpol check -f -`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringVarP(&c.output, "output", "o", "text", "text, json, sarif (SARIF 2.1.0, for code scanning), github (commands of GitHub workflows) or junit")
	fs.StringVar(&c.failOn, "fail-on", "warning", "the lowest severity of findings that makes the exit code 1: error, warning, info or none")
	fs.StringSliceVar(&c.disabled, "disable", nil, "rules whose findings are left out; an unknown one is an error")
	fs.StringSliceVar(&c.serviceCIDRs, "service-cidr", nil, "ranges that addresses of Services are from, for the rule service-address, in addition to those of ServiceCIDRs")
	fs.StringVar(&c.baseline, "baseline", "", "file with findings that are known, as -o json prints them: they are counted and not shown. One that cannot be read is an error")
	fs.BoolVar(&c.listRules, "rules", false, "list the rules with their severities instead of checking anything")
	return cmd
}

// ruleTable lists all rules as text.
func ruleTable() string {
	var b strings.Builder
	for _, r := range lint.Rules {
		fmt.Fprintf(&b, "  %-22s  %-7s  %s\n", r.ID, r.Severity, r.Title)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (c *checkOptions) run(cmd *cobra.Command) error {
	out := cmd.OutOrStdout()
	if c.listRules {
		_, err := fmt.Fprintln(out, ruleTable())
		return err
	}
	ranges, err := c.validate()
	if err != nil {
		return err
	}
	r, err := c.check(cmd.Context(), cmd.InOrStdin(), ranges)
	if err != nil {
		return err
	}
	c.printCaveats(cmd.ErrOrStderr())
	if err := c.write(out, r); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Findings, func(f finding) bool { return f.Severity >= failLevels[c.failOn] }) {
		return errNo
	}
	return nil
}

// write writes the report in the format of --output.
func (c *checkOptions) write(w io.Writer, r *report) error {
	switch c.output {
	case "json":
		return printJSON(w, c.withCaveats(r))
	case "sarif":
		return writeSARIF(w, r)
	case "github":
		return writeGitHub(w, r)
	case "junit":
		return writeJUnit(w, r, failLevels[c.failOn])
	}
	return writeText(w, r)
}

// validate checks the flags and returns the Service ranges.
func (c *checkOptions) validate() ([]netip.Prefix, error) {
	if err := checkOutput("check", c.output); err != nil {
		return nil, err
	}
	if _, ok := failLevels[c.failOn]; !ok {
		return nil, fmt.Errorf("--fail-on=%s: must be error, warning, info or none", c.failOn)
	}
	for _, id := range c.disabled {
		if lint.RuleNamed(id) == nil {
			return nil, fmt.Errorf("--disable=%s: there is no such rule; --rules lists them", id)
		}
	}
	return parseRanges("service-cidr", c.serviceCIDRs)
}

// parseRanges returns the values of a flag.
func parseRanges(flag string, values []string) (ranges []netip.Prefix, err error) {
	for _, s := range values {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("--%s=%s: must be a CIDR", flag, s)
		}
		ranges = append(ranges, p.Masked())
	}
	return ranges, nil
}

// check reads the cluster and reports the mistakes in its policies.
func (c *checkOptions) check(ctx context.Context, stdin io.Reader, ranges []netip.Prefix) (*report, error) {
	var known map[knownFinding]int
	if c.baseline != "" {
		var err error
		if known, err = readBaseline(c.baseline); err != nil {
			return nil, fmt.Errorf("--baseline: %w", err)
		}
	}
	in, refused, err := c.load(ctx, stdin)
	if err != nil {
		return nil, err
	}
	if len(in.Policies)+len(refused)+len(in.Pods) == 0 {
		return nil, errors.New("there is neither a policy nor a pod to check")
	}
	in.ServiceCIDRs = append(in.ServiceCIDRs, ranges...)
	done := c.progress("Checking " + words.Count(len(in.Policies), "policy", "policies"))
	r := newReport(in, c.objects, c.disabled)
	done()
	if !slices.Contains(c.disabled, lint.Refused) {
		r.addRefused(refused)
	}
	if c.namespace != "" {
		known := in.Namespaces
		for _, o := range refused {
			known = append(known, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Namespace}})
		}
		if err := c.checkNamespace(known); err != nil {
			return nil, err
		}
		r.keep(c.namespace)
	}
	if known != nil {
		if gone := r.leaveOutKnown(known); gone > 0 && c.namespace == "" {
			fmt.Fprintf(c.notes, "%s of %s: write it again\n", words.Count(gone, "finding is gone", "findings are gone"), c.baseline)
		}
	}
	if c.output != "json" { // a baseline has each object
		r.mergeCopies()
	}
	return r, nil
}

// load returns what rules look at, and what API servers refuse of the files that it is from.
func (c *checkOptions) load(ctx context.Context, stdin io.Reader) (lint.Input, []*clusterfiles.Refused, error) {
	if len(c.files) == 0 {
		c.templates = true
		in, err := c.live(ctx)
		if c.services.limit != "" {
			c.limits = append(c.limits, c.services.limit+": mistakes that they show are not found")
		}
		return c.lintInput(in), nil, err
	}
	var err error
	if c.ranges, err = parseRanges("pod-cidr", c.podCIDRs); err != nil {
		return lint.Input{}, nil, err
	}
	done := c.progress("Reading files")
	files, refused, err := clusterfiles.ReadValid(c.files, stdin, c.reading())
	done()
	if err != nil {
		return lint.Input{}, nil, err
	}
	c.take(files)
	return c.lintInput(c.input(files)), refused, nil
}

// lintInput returns what rules look at of a cluster that was read.
func (o *options) lintInput(in clusterstate.Input) lint.Input {
	all := lint.Input{
		Features:     in.Features,
		Namespaces:   in.Namespaces,
		Pods:         in.Pods,
		Nodes:        in.Nodes,
		Workloads:    o.workloads,
		PodRanges:    o.ranges,
		CIDRGroups:   in.CIDRGroups,
		Services:     o.services.list,
		Behind:       o.services.backends,
		ServiceCIDRs: o.services.ranges,
		Exposing:     o.exposing,
		Policies:     in.Policies,
		Partial:      o.objects != nil || len(o.limits) > 0,
	}
	if o.objects != nil {
		all.AssumedNamespaces, all.Controllers = o.objects.AssumedNamespaces, o.objects.CustomResources
	}
	return all
}
