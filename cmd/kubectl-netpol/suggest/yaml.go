package suggest

import (
	"fmt"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// YAML returns the policies as manifests. Comments list the flows that each rule allows.
func (s *Suggestion) YAML() (string, error) {
	var out strings.Builder
	for i := range s.Policies {
		if i > 0 {
			out.WriteString("---\n")
		}
		if err := s.Policies[i].writeYAML(&out); err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

func (p *Policy) writeYAML(out *strings.Builder) error {
	switch {
	case p.title == "":
		out.WriteString("# What no rule allows is denied, for all pods of the namespace.\n")
	case len(p.further) > 0:
		fmt.Fprintf(out, "# For %s. The same labels select %s.\n", p.title, strings.Join(p.further, ", "))
	default:
		fmt.Fprintf(out, "# For %s.\n", p.title)
	}
	w := yamlWriter{out: out}
	w.write("", map[string]any{"apiVersion": p.APIVersion, "kind": p.Kind})
	out.WriteString("metadata:\n")
	w.write("  ", map[string]any{"namespace": p.Namespace})
	w.write("  ", map[string]any{"name": p.Name})
	w.write("  ", map[string]any{"labels": p.Labels})
	if len(p.Annotations) > 0 {
		w.write("  ", map[string]any{"annotations": p.Annotations})
	}
	out.WriteString("spec:\n")
	w.write("  ", map[string]any{"podSelector": p.Spec.PodSelector})
	w.write("  ", map[string]any{"policyTypes": p.Spec.PolicyTypes})
	w.list("ingress", len(p.Spec.Ingress))
	for i, rule := range p.Spec.Ingress {
		w.rule(p.ingress[i], map[string]any{"from": rule.From}, rule.Ports)
	}
	w.list("egress", len(p.Spec.Egress))
	for i, rule := range p.Spec.Egress {
		w.rule(p.egress[i], map[string]any{"to": rule.To}, rule.Ports)
	}
	return w.err
}

// yamlWriter writes API values and keeps the first error.
type yamlWriter struct {
	out *strings.Builder
	err error
}

// write writes the fields of a value or the items of a list.
func (w *yamlWriter) write(indent string, value any) {
	text, err := yaml.Marshal(value)
	if err != nil {
		w.err = err
		return
	}
	for line := range strings.Lines(string(text)) {
		w.out.WriteString(indent + line)
	}
}

// list begins a list of n rules, if there are any.
func (w *yamlWriter) list(field string, n int) {
	if n > 0 {
		fmt.Fprintf(w.out, "  %s:\n", field)
	}
}

// rule writes a rule with its comments.
func (w *yamlWriter) rule(comments []string, peers map[string]any, ports []networkingv1.NetworkPolicyPort) {
	for _, line := range comments {
		fmt.Fprintf(w.out, "  # %s\n", line)
	}
	w.write("  ", []any{peers})
	w.write("    ", map[string]any{"ports": ports})
}
