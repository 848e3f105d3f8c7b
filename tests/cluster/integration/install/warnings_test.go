package install

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

const (
	warningsFile = "install-warnings.yaml"
	warningsName = "netpol-warnings"
)

// Nothing is refused, and the warnings do not stop writes of policies that cannot be checked.
func TestWarningsRefuseNothing(t *testing.T) {
	for _, name := range []string{warningsName, warningsName + "-admin"} {
		p := named[*admissionv1.ValidatingAdmissionPolicy](t, warningsFile, name)
		binding := named[*admissionv1.ValidatingAdmissionPolicyBinding](t, warningsFile, name)

		if binding.Spec.PolicyName != name || !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Warn}) {
			t.Errorf("the binding is %+v", binding.Spec)
		}
		if *p.Spec.FailurePolicy != admissionv1.Ignore {
			t.Errorf("%s refuses what it cannot check", name)
		}
	}
}

func TestWarnings(t *testing.T) {
	const annotation = "kube-network-policies.x-k8s.io/enforcement: "
	for _, tc := range []struct {
		name, policy, old, object string
		want                      []string // of each message
	}{
		{"nothing to say", warningsName, "", `{metadata: {}, spec: {podSelector: {}, ingress: [{}, {ports: [{port: 1, endPort: 2}, {protocol: SCTP}]}]}}`, nil},
		{"audited", warningsName, "", `{metadata: {annotations: {` + annotation + `audit}}, spec: {podSelector: {}}}`, nil},
		{"misspelt", warningsName, "", `{metadata: {annotations: {` + annotation + `Audit}}, spec: {podSelector: {}}}`, []string{"neither audit nor enforce"}},
		{"misspelt now", warningsName, `{metadata: {}, spec: {podSelector: {}}}`, `{metadata: {annotations: {` + annotation + `Audit}}, spec: {podSelector: {}}}`,
			[]string{"neither audit nor enforce"}},
		{"annotated by the status writer", warningsName, `{metadata: {annotations: {` + annotation + `Audit}}, spec: {podSelector: {}}}`,
			`{metadata: {annotations: {` + annotation + `Audit, a: b}}, spec: {podSelector: {}}}`, nil},
		{"names that are accepted", warningsName + "-admin", "", `{metadata: {}, spec: {ingress: [{action: Deny, from: [{namespaces: {}}]}],
			egress: [{action: Accept, to: [{domainNames: [a.test]}], protocols: [{tcp: {destinationPort: {range: {start: 1, end: 2}}}}]}, {action: Deny, to: [{networks: ["::/0"]}]}]}}`, nil},
		{"names that are denied", warningsName + "-admin", "", `{metadata: {}, spec: {egress: [{action: Deny, to: [{networks: ["::/0"]}, {domainNames: [a.test]}]}]}}`,
			[]string{"denies everything"}},
		{"names that pass", warningsName + "-admin", `{metadata: {}, spec: {}}`, `{metadata: {}, spec: {egress: [{action: Pass, to: [{domainNames: [a.test]}]}]}}`,
			[]string{"denies everything"}},
		{"a range backwards", warningsName + "-admin", "", `{metadata: {}, spec: {ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {port: 1}}, {portRange: {start: 9, end: 8}}]}]}}`,
			[]string{"start is above its end"}},
		{"a range", warningsName + "-admin", "", `{metadata: {}, spec: {egress: [{action: Allow, to: [{namespaces: {}}], ports: [{portRange: {start: 8, end: 8}}, {namedPort: web}]}]}}`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := warnings(t, named[*admissionv1.ValidatingAdmissionPolicy](t, warningsFile, tc.policy), tc.old, tc.object)

			if len(got) != len(tc.want) {
				t.Fatalf("warnings %q, want %q", got, tc.want)
			}
			for i, want := range tc.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("warnings %q, want %q", got, tc.want)
				}
			}
		})
	}
}

// warnings evaluates p as an API server of Kubernetes 1.30 does, the oldest with the kind.
func warnings(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy, old, object string) []string {
	t.Helper()
	env, err := environment.MustBaseEnvSet(version.MajorMinor(1, 30)).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0),
		EnvOptions: []cel.EnvOption{cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType), cel.Variable("request", cel.DynType),
			cel.Variable("variables", cel.DynType)},
	})
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{}
	request := map[string]any{"operation": "CREATE", "userInfo": map[string]any{"username": "system:serviceaccount:kube-system:" + writerName}}
	input := map[string]any{"request": request, "variables": variables}
	for name, text := range map[string]string{"object": object, "oldObject": old} {
		var fields any
		if err := yaml.Unmarshal([]byte(text), &fields); err != nil {
			t.Fatal(err)
		}
		input[name] = fields
	}
	if old != "" {
		request["operation"] = "UPDATE"
	}
	evaluate := func(expression string) any {
		compiler, err := env.Env(environment.NewExpressions)
		if err != nil {
			t.Fatal(err)
		}
		checked, issues := compiler.Compile(expression)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := compiler.Program(checked)
		if err != nil {
			t.Fatal(err)
		}
		value, _, err := program.Eval(input)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		return value
	}
	holds := func(expression string) bool { return evaluate(expression).(interface{ Value() any }).Value() == true }

	for _, c := range p.Spec.MatchConditions {
		if !holds(c.Expression) {
			return nil
		}
	}
	for _, v := range p.Spec.Variables {
		variables[v.Name] = evaluate(v.Expression)
	}
	var messages []string
	for _, v := range p.Spec.Validations {
		if !holds(v.Expression) {
			messages = append(messages, v.Message)
		}
	}
	return messages
}
