package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/apivalidation"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

func newConvert(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "convert",
		Short: "Write ClusterNetworkPolicies for AdminNetworkPolicies and the BaselineAdminNetworkPolicy",
		Long: `Write ClusterNetworkPolicies (v1beta1) that decide like the AdminNetworkPolicies and the
BaselineAdminNetworkPolicy of the live cluster, or of manifests (-f). Apply them first, and then
delete the old policies. Meanwhile both are in force, and decide the same.

ClusterNetworkPolicies beside them are only compared: they need other names, and with the same
priority the same order, so that -f should include those of the cluster.

The exit code is 0 when all policies are written, 1 when something cannot be said, which is named on
standard error while nothing is written, and 2 when the policies cannot be read.`,
		Example: `  kubectl netpol convert > converted.yaml
  kubectl-netpol convert -f ./policies`,
		Args: onlyFiles,
		RunE: func(cmd *cobra.Command, _ []string) error { return convert(o, cmd) },
	}
}

func convert(o *options, cmd *cobra.Command) error {
	in, err := o.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	o.printCaveats(cmd.ErrOrStderr())
	converted, faults, err := converted(in.Policies)
	if err != nil {
		return err
	}
	for _, fault := range faults {
		fmt.Fprintln(cmd.ErrOrStderr(), "Cannot be said:", fault)
	}
	if len(faults) > 0 {
		return errNo
	}
	if len(converted) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "No AdminNetworkPolicy and no BaselineAdminNetworkPolicy")
	}
	for _, p := range converted {
		text, err := yaml.Marshal(p)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(cmd.OutOrStdout(), "---\n"+string(text)); err != nil {
			return err
		}
	}
	return nil
}

// converted returns ClusterNetworkPolicies for the policies of v1alpha1, and what they cannot say.
func converted(policies []compile.Object) (all []map[string]any, faults []string, err error) {
	names := map[string]string{} // of the policies that have them
	for _, p := range policies {
		if _, is := p.(*proposed.ClusterNetworkPolicy); is {
			names[p.GetName()] = describe(p)
		}
	}
	for _, p := range policies {
		fault := func(format string, args ...any) {
			faults = append(faults, describe(p)+": "+fmt.Sprintf(format, args...))
		}
		c, err := asClusterPolicy(p)
		if err != nil {
			return nil, nil, err
		}
		if c == nil {
			continue
		}
		if _, baseline := p.(*v1alpha1.BaselineAdminNetworkPolicy); baseline && p.GetName() != "default" {
			fault("it is not enforced, because its name is not default")
		}
		if other := names[p.GetName()]; other != "" {
			fault("%s has, or gets, the same name", other)
		}
		names[p.GetName()] = describe(p)
		for _, other := range policies {
			if moved := reordered(c, p, other); moved != "" {
				fault("%s", moved)
			}
		}
		for _, e := range apivalidation.Validate(c) {
			fault("%v", e)
		}
		all = append(all, c)
	}
	return all, faults, nil
}

func describe(p compile.Object) string { return compile.KindOf(p).Name + "/" + p.GetName() }

// lastPriority is that of the converted BaselineAdminNetworkPolicy, which comes after all others.
const lastPriority = 1000

// asClusterPolicy returns a policy of v1alpha1 as ClusterNetworkPolicy, and nil for other kinds.
func asClusterPolicy(p compile.Object) (map[string]any, error) {
	tier, priority := v1beta1.AdminTier, int32(lastPriority)
	switch p := p.(type) {
	case *v1alpha1.AdminNetworkPolicy:
		priority = p.Spec.Priority
	case *v1alpha1.BaselineAdminNetworkPolicy:
		tier = v1beta1.BaselineTier
	default:
		return nil, nil
	}
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
	if err != nil {
		return nil, err
	}
	spec, _ := o["spec"].(map[string]any)
	spec["tier"], spec["priority"] = string(tier), int64(priority)
	for _, direction := range []string{"ingress", "egress"} {
		rules, _ := spec[direction].([]any)
		for _, rule := range rules {
			convertRule(rule.(map[string]any))
		}
	}
	c := unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	c.SetAPIVersion(v1beta1.GroupVersion.String())
	c.SetKind(compile.KindClusterNetworkPolicy.Name)
	c.SetName(p.GetName())
	c.SetLabels(p.GetLabels())
	annotations := maps.Clone(p.GetAnnotations())
	delete(annotations, "kubectl.kubernetes.io/last-applied-configuration")
	if len(annotations) > 0 {
		c.SetAnnotations(annotations)
	}
	return c.Object, nil
}

// convertRule gives a rule of v1alpha1 the names of v1beta1.
func convertRule(rule map[string]any) {
	if rule["action"] == string(v1alpha1.AdminNetworkPolicyRuleActionAllow) {
		rule["action"] = string(v1beta1.ClusterNetworkPolicyRuleActionAccept)
	}
	ports, _ := rule["ports"].([]any)
	delete(rule, "ports")
	var protocols []any
	for _, port := range ports {
		protocols = append(protocols, newProtocol(port.(map[string]any)))
	}
	if len(protocols) > 0 { // no ports are all ports
		rule["protocols"] = protocols
	}
}

// newProtocol converts a port. One with several fields, or none, becomes empty, which the definition
// refuses.
func newProtocol(port map[string]any) map[string]any {
	if len(port) != 1 {
		return map[string]any{}
	}
	if name, named := port["namedPort"]; named {
		return map[string]any{"destinationNamedPort": name}
	}
	var protocol string
	destination := map[string]any{}
	if number, is := port["portNumber"].(map[string]any); is {
		protocol, _ = number["protocol"].(string)
		destination["number"] = number["port"]
	}
	if ports, is := port["portRange"].(map[string]any); is {
		protocol, _ = ports["protocol"].(string)
		destination["range"] = map[string]any{"start": ports["start"], "end": ports["end"]}
		if ports["start"] == ports["end"] { // one port, which v1beta1 refuses as range
			destination = map[string]any{"number": ports["start"]}
		}
	}
	return map[string]any{strings.ToLower(cmp.Or(protocol, "TCP")): map[string]any{"destinationPort": destination}}
}

// reordered says why c, converted from p, would change places with other, a ClusterNetworkPolicy: those
// of a tier and priority are evaluated by kind and then by name, and the BaselineAdminNetworkPolicy last.
func reordered(c map[string]any, p, other compile.Object) string {
	o, is := other.(*proposed.ClusterNetworkPolicy)
	spec := c["spec"].(map[string]any)
	if !is || string(o.Spec.Tier) != spec["tier"] || int64(o.Spec.Priority) != spec["priority"] {
		return ""
	}
	switch baseline := o.Spec.Tier == v1beta1.BaselineTier; {
	case !baseline && o.Name < p.GetName():
		return describe(o) + " has the same priority, and its name would put it first"
	case baseline && o.Name > p.GetName():
		return describe(o) + " has the last priority, and its name would put it last"
	}
	return ""
}
