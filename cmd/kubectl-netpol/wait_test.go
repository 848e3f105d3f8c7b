package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// servedPolicies is a cluster with policies of one version and generation 2.
type servedPolicies struct {
	version   string
	condition string // "STATUS GENERATION", in the annotation
	labels    map[string]string
	namespace map[string]string // annotations of all namespaces
	nodes     []string
	noNodes   error
	missing   bool
	specs     map[string]string // the fields by name of the policy
}

func (s *servedPolicies) Policy(_ context.Context, kind *compile.Kind, namespace, name string) (*unstructured.Unstructured, error) {
	if s.missing {
		return nil, errors.New("not found")
	}
	served, err := yaml.YAMLToJSON([]byte("{kind: " + kind.Name + ", spec: {" + s.specs[name] + "}}"))
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(served); err != nil {
		return nil, err
	}
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetGeneration(2)
	u.SetResourceVersion(s.version)
	annotations := map[string]string{}
	for key, value := range s.labels {
		annotations[key] = value
	}
	if status, generation, ok := strings.Cut(s.condition, " "); ok {
		annotations[conditionsAnnotation] = fmt.Sprintf(`[{"type":"Accepted","status":"True"},{"type":"Enforced","status":%q,"observedGeneration":%s,"message":"In force on some."}]`, status, generation)
	}
	u.SetAnnotations(annotations)
	return u, nil
}

func (s *servedPolicies) Namespace(_ context.Context, name string) (metav1.Object, error) {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "40", Annotations: s.namespace}}, nil
}

func (s *servedPolicies) Nodes(context.Context) ([]string, error) { return s.nodes, s.noNodes }

// inForce is the line of an agent that enforces policies up to a version.
func inForce(version string) string {
	return stated(fmt.Sprintf(`"version":"v1","pods":1,"inForce":{"node":"NODE","kinds":[{"kind":"NetworkPolicy","version":%q,"seen":%q},{"kind":"Namespace","version":"50","seen":"50"},{"kind":"ClusterNetworkPolicy","version":%q,"seen":%q},{"kind":"AdminNetworkPolicy","version":"90","seen":"90"}]}`, version, version, version, version))
}

// waitFor runs the command wait in a bubble.
func waitFor(t *testing.T, s *servedPolicies, agents fakeAgents, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return waitWith(t, s, agents, "", args...)
}

// waitWith runs the command wait with a file as standard input unless that is empty.
func waitWith(t *testing.T, s *servedPolicies, agents fakeAgents, file string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	if s.nodes == nil {
		s.nodes = []string{"a", "b"}
	}
	synctest.Test(t, func(t *testing.T) {
		o := &options{notes: io.Discard, namespace: "shop", adminPolicies: true, features: compile.AllFeatures()}
		if file != "" {
			o.files = []string{clusterfiles.Stdin}
		}
		w := waitOptions{agentOptions: agentOptions{options: o, connect: agents.connect}, condition: "enforced", timeout: 5 * time.Second, cluster: func() (waitCluster, error) { return s, nil }}
		if agents == nil {
			w.connect = func(context.Context) ([]corev1.Pod, runner, error) {
				return nil, nil, errors.New("pods is forbidden")
			}
		}
		var out, errs bytes.Buffer
		cmd := newWait(o)
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(file))
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		err = w.run(cmd, args)
		stdout, stderr = out.String(), errs.String()
	})
	return stdout, stderr, err
}

func TestWait(t *testing.T) {
	reports := map[string]string{compile.ReportAnnotation: compile.ReportEnforced}
	older := prints("b", agentLine)
	silent := func(ctx context.Context, _ []string, _, _ io.Writer) error {
		<-ctx.Done()
		return ctx.Err()
	}
	standby := stated(`"version":"v1","pods":1,"inForce":{"node":"NODE","problem":"another agent of the node writes the table","kinds":[]}`)
	for name, tt := range map[string]struct {
		served servedPolicies
		agents fakeAgents
		out    string // all of standard output, or a part of standard error
		exit   int
	}{
		"in force":                  {servedPolicies{version: "90"}, fakeAgents{"a": prints("a", inForce("90")), "b": prints("b", inForce("95"))}, "networkpolicy/shop/db: in force on 2 of 2 nodes\n", exitYes},
		"not on one":                {servedPolicies{version: "90"}, fakeAgents{"a": prints("a", inForce("90")), "b": prints("b", inForce("89"))}, "networkpolicy/shop/db: in force on 1 of 2 nodes; not on b: NetworkPolicy: version 90 is not received, only version 89\n", exitNo},
		"no agent":                  {servedPolicies{version: "90"}, fakeAgents{"a": prints("a", inForce("90"))}, "not on b: no agent runs there", exitNo},
		"an agent that starts":      {servedPolicies{version: "90"}, fakeAgents{"a": prints("a", inForce("90")), "b": nil}, "not on b: the pod is Pending", exitError},
		"an agent that hangs":       {servedPolicies{version: "90"}, fakeAgents{"a": prints("a", inForce("90")), "b": silent}, "not on b: no answer in 3s", exitError},
		"an older agent":            {servedPolicies{version: "90"}, fakeAgents{"a": prints("a", inForce("90")), "b": older}, "not on b: its agent is an older version, which does not say what is in force", exitError},
		"only older agents":         {servedPolicies{version: "90"}, fakeAgents{"b": older}, "nothing says whether it is in force: agents are not asked (no agent says what is in force)", exitError},
		"a problem":                 {servedPolicies{version: "90"}, fakeAgents{"a": prints("a", standby), "b": prints("b", inForce("90"))}, "not on a: another agent of the node writes the table", exitNo},
		"another agent of the node": {servedPolicies{version: "90", nodes: []string{"a"}}, fakeAgents{"a": prints("a", inForce("90"), standby)}, "networkpolicy/shop/db: in force on 1 of 1 node\n", exitYes},
		"audited":                   {servedPolicies{version: "90", labels: map[string]string{compile.EnforcementAnnotation: "audit"}}, fakeAgents{"a": prints("a", inForce("90")), "b": prints("b", inForce("95"))}, "it is audited", exitNo},
		"audited by its namespace":  {servedPolicies{version: "90", namespace: map[string]string{compile.EnforcementAnnotation: "audit"}}, fakeAgents{"a": prints("a", inForce("90")), "b": prints("b", inForce("95"))}, "it is audited", exitNo},
		"restored data":             {servedPolicies{version: "90"}, fakeAgents{"a": prints("a", inForce("7")), "b": prints("b", inForce("7"))}, "in force on 0 of 2 nodes", exitNo},

		"a tenant":                                  {servedPolicies{version: "90", condition: "True 2"}, nil, "networkpolicy/shop/db: In force on some.\n", exitYes},
		"a tenant, not in force":                    {servedPolicies{version: "90", condition: "False 2"}, nil, "In force on some.", exitNo},
		"a tenant, not known":                       {servedPolicies{version: "90", condition: "Unknown 2"}, nil, "In force on some.", exitError},
		"a tenant, of the last generation":          {servedPolicies{version: "90", condition: "True 1"}, nil, "the status writer has not said whether generation 2 is in force", exitError},
		"a tenant, without a condition":             {servedPolicies{version: "90"}, nil, "agents are not asked (pods is forbidden), and it has no condition; annotate it with kube-network-policies.x-k8s.io/report=enforced", exitError},
		"a tenant, before the condition":            {servedPolicies{version: "90", labels: reports}, nil, "the status writer has not said whether it is in force", exitError},
		"an operator without nodes, by a condition": {servedPolicies{version: "90", condition: "True 2", noNodes: errors.New("nodes is forbidden")}, fakeAgents{"a": prints("a", inForce("7"))}, "networkpolicy/shop/db: In force on some.\n", exitYes},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := waitFor(t, &tt.served, tt.agents, "netpol/db")
			exit := exitYes
			switch {
			case errors.Is(err, errNo):
				exit = exitNo
			case err != nil:
				exit = exitError
			}
			if exit != tt.exit {
				t.Errorf("exit code %d (%v), want %d", exit, err, tt.exit)
			}
			if exit == exitYes && stdout != tt.out || exit != exitYes && (stdout != "" || !strings.Contains(stderr, tt.out)) {
				t.Errorf("stdout %q, stderr %q, want %q", stdout, stderr, tt.out)
			}
			if got := strings.Count(stderr, "\n"); exit != exitYes && got != 1 {
				t.Errorf("%d lines although nothing changes:\n%s", got, stderr)
			}
		})
	}
}

// The wait ends when the last node enforces the policies of a file, and says what changes until then.
func TestWaitForFiles(t *testing.T) {
	const policies = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: db}\nspec: {podSelector: {}}\n---\n" +
		"apiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: all}\nspec: {tier: Admin, priority: 1, subject: {namespaces: {}}}\n"
	asked := 0
	agents := fakeAgents{"a": prints("a", inForce("90")), "b": func(ctx context.Context, command []string, out, errs io.Writer) error {
		asked++
		return prints("b", inForce(map[bool]string{true: "90", false: "80"}[asked >= 3]))(ctx, command, out, errs)
	}}
	o := &options{notes: io.Discard, files: []string{clusterfiles.Stdin}, namespace: "shop", adminPolicies: true, features: compile.AllFeatures()}
	w := waitOptions{agentOptions: agentOptions{options: o, connect: agents.connect}, condition: "enforced", timeout: time.Minute,
		cluster: func() (waitCluster, error) {
			return &servedPolicies{version: "90", nodes: []string{"a", "b"}, specs: map[string]string{
				"db": "podSelector: {}, policyTypes: [Ingress]", "all": "tier: Admin, priority: 1, subject: {namespaces: {}}",
			}}, nil
		}}
	synctest.Test(t, func(t *testing.T) {
		var out, errs bytes.Buffer
		cmd := newWait(o)
		cmd.SetContext(t.Context())
		cmd.SetIn(strings.NewReader(policies))
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		if err := w.run(cmd, nil); err != nil {
			t.Fatal(err)
		}
		if got, want := out.String(), "in force on 2 of 2 nodes"; strings.Count(got, want) != 2 || !strings.Contains(got, "clusternetworkpolicy/all") {
			t.Errorf("got %s", got)
		}
		if got := strings.Count(errs.String(), "in force on 1 of 2 nodes"); got != 2 {
			t.Errorf("progress:\n%s", errs.String())
		}
	})
}

// A policy that is applied with another spec than the file has is an error that names the field.
func TestWaitComparesFiles(t *testing.T) {
	agents := fakeAgents{"a": prints("a", inForce("90")), "b": prints("b", inForce("90"))}
	const cnp, np = "ClusterNetworkPolicy", "NetworkPolicy"
	const deny, accept = "{action: Deny, from: [{namespaces: {}}]}", "{action: Accept, from: [{namespaces: {}}]}"
	const admin = "tier: Admin, priority: 1, subject: {namespaces: {}}"
	for name, tt := range map[string]struct {
		kind, file, applied string
		want                string // a part of the error, empty if there is none
	}{
		"defaults":                {np, "podSelector: {}, egress: [{ports: [{port: 80}]}]", "podSelector: {}, policyTypes: [Ingress, Egress], egress: [{ports: [{port: 80, protocol: TCP}]}]", ""},
		"empty lists":             {np, "podSelector: {matchLabels: {}}, ingress: [{from: [], ports: []}], egress: []", "podSelector: {}, policyTypes: [Ingress], ingress: [{}]", ""},
		"the order of lists":      {np, "podSelector: {}, policyTypes: [Egress, Ingress], ingress: [{ports: [{port: 80}, {port: 81}]}, {ports: [{port: dns, protocol: UDP}]}]", "podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{ports: [{port: dns, protocol: UDP}]}, {ports: [{port: 81, protocol: TCP}, {port: 80, protocol: TCP}]}]", ""},
		"the default of an ANP":   {"AdminNetworkPolicy", "priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {port: 80}}]}]", "priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {port: 80, protocol: TCP}}]}]", ""},
		"the same rules":          {cnp, admin + ", ingress: [" + deny + ", " + accept + "]", admin + ", ingress: [" + deny + ", " + accept + "]", ""},
		"an annotation":           {np + ", metadata: {name: db, annotations: {" + compile.EnforcementAnnotation + ": audit}}", "podSelector: {}", "podSelector: {}, policyTypes: [Ingress]", `networkpolicy/shop/db: metadata.annotations[` + compile.EnforcementAnnotation + `]: the file has "audit", and nothing is applied`},
		"a subject":               {np, "podSelector: {matchLabels: {app: db}}", "podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]", `networkpolicy/shop/db: spec.podSelector.matchLabels.app: the file has "db", and "web" is applied`},
		"a port":                  {np, "podSelector: {}, ingress: [{ports: [{port: 80}]}]", "podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: 81, protocol: TCP}]}]", "spec.ingress[0].ports[0].port: the file has 80, and 81 is applied"},
		"a name that is a number": {np, "podSelector: {}, ingress: [{ports: [{port: 80}]}]", "podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: '80', protocol: TCP}]}]", `spec.ingress[0].ports[0].port: the file has 80, and "80" is applied`},
		"a rule more":             {np, "podSelector: {}, ingress: [{ports: [{port: 80}]}]", "podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: 80, protocol: TCP}]}, {}]", "spec.ingress[1]: the file has nothing, and {} is applied"},
		"a rule less":             {np, "podSelector: {}, ingress: [{}]", "podSelector: {}, policyTypes: [Ingress]", "spec.ingress: the file has [{}], and nothing is applied"},
		"a selector of all pods":  {np, "podSelector: {}, ingress: [{from: [{podSelector: {}}]}]", "podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}, podSelector: {}}]}]", "spec.ingress[0].from[0].namespaceSelector: the file has nothing, and {} is applied"},
		"a direction":             {np, "podSelector: {}, policyTypes: [Ingress, Egress]", "podSelector: {}, policyTypes: [Ingress]", `spec.policyTypes[1]: the file has "Egress", and nothing is applied`},
		"a priority":              {cnp, admin, "tier: Admin, priority: 2, subject: {namespaces: {}}", "clusternetworkpolicy/db: spec.priority: the file has 1, and 2 is applied"},
		"the order of rules":      {cnp, admin + ", ingress: [" + deny + ", " + accept + "]", admin + ", ingress: [" + accept + ", " + deny + "]", `spec.ingress[0].action: the file has "Deny", and "Accept" is applied`},
		"a field that is new":     {np, "podSelector: {}", "podSelector: {}, policyTypes: [Ingress], tomorrow: 1", `the applied one cannot be compared with the file: strict decoding error: unknown field "spec.tomorrow"`},
	} {
		t.Run(name, func(t *testing.T) {
			kind, metadata, named := strings.Cut(tt.kind, ", ")
			if !named {
				metadata = "metadata: {name: db}"
			}
			version := compile.KindNamed(kind).Resource.GroupVersion()
			file := fmt.Sprintf("{apiVersion: %s, kind: %s, %s, spec: {%s}}", version, kind, metadata, tt.file)
			_, _, err := waitWith(t, &servedPolicies{version: "90", specs: map[string]string{"db": tt.applied}}, agents, file)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestWaitRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		edit func(*waitOptions)
		want string
	}{
		"no condition":       {[]string{"netpol/db"}, func(w *waitOptions) { w.condition = "" }, "--for=: must be enforced"},
		"another condition":  {[]string{"netpol/db"}, func(w *waitOptions) { w.condition = "delete" }, "--for=delete: must be enforced"},
		"a negative timeout": {[]string{"netpol/db"}, func(w *waitOptions) { w.timeout = -1 }, "--timeout=-1ns: must not be negative"},
		"nothing":            {nil, nil, "either by files (-f) or by KIND/NAME"},
		"both":               {[]string{"netpol/db"}, func(w *waitOptions) { w.files = []string{"x"} }, "either by files (-f) or by KIND/NAME"},
		"no kind":            {[]string{"db"}, nil, `"db": must be KIND/NAME`},
		"another kind":       {[]string{"pod/db"}, nil, `"pod/db": must be KIND/NAME, with a kind of policy: networkpolicy, `},
		"no name":            {[]string{"netpol/"}, nil, `"netpol/": must be KIND/NAME`},
		"a namespace":        {[]string{"netpol/shop/db"}, nil, `"netpol/shop/db": must be KIND/NAME`},
		"not applied": {[]string{"netpol/db"}, func(w *waitOptions) {
			w.cluster = func() (waitCluster, error) { return &servedPolicies{missing: true}, nil }
		}, "networkpolicy/shop/db: not found"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &options{notes: io.Discard, namespace: "shop"}
			w := &waitOptions{agentOptions: agentOptions{options: o}, condition: "enforced", timeout: time.Second}
			if tt.edit != nil {
				tt.edit(w)
			}
			cmd := newWait(o)
			cmd.SetContext(t.Context())
			if err := w.run(cmd, tt.args); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
