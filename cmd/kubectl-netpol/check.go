package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

type checkOptions struct {
	*options
	output string
}

func newCheck(o *options) *cobra.Command {
	c := &checkOptions{options: o}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "List the parts of policies that are not enforced as written",
		Long: `List the parts of policies that the agents do not enforce as written, and what
they enforce instead. Files must also conform to the schema of the API: an unknown
field, or one of a wrong type, is an error with its file and line. With -n,
cluster-scoped policies are left out.

The exit code is 0 without findings, 1 with findings, and 2 when the manifests or
the cluster cannot be read.`,
		Example: `  kubectl-netpol check -f ./manifests
  git show HEAD:policy.yaml | kubectl-netpol check -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd) },
	}
	addTextOutput(cmd, &c.output)
	return cmd
}

func (c *checkOptions) run(cmd *cobra.Command) error {
	if err := checkOutput(c.output, "text", "json"); err != nil {
		return err
	}
	in, err := c.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	c.printLimits(cmd.ErrOrStderr())
	if c.namespace != "" {
		in.Policies = slices.DeleteFunc(in.Policies, func(p compile.Object) bool {
			return p.GetNamespace() != c.namespace
		})
	}
	policies := len(in.Policies)
	findings := []reachability.Finding{}
	for _, f := range reachability.New(in).Findings() {
		findings = append(findings, reachability.NewFinding(f))
	}
	out := cmd.OutOrStdout()
	if c.output == "json" {
		err = printJSON(out, c.withLimits(map[string]any{"policies": policies, "findings": findings}))
	} else {
		for _, f := range findings {
			fmt.Fprintln(out, findingLine(f))
		}
		_, err = fmt.Fprintf(out, "%s in %s\n", count(len(findings), "finding", "findings"), count(policies, "policy", "policies"))
	}
	if err == nil && len(findings) > 0 {
		return errNo
	}
	return err
}

func findingLine(f reachability.Finding) string {
	name := f.Name
	if f.Namespace != "" {
		name = f.Namespace + "/" + name
	}
	return fmt.Sprintf("%s %s: %s: %s: %s", f.Kind, name, f.Field, f.Reason, f.Message)
}
