package chart

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/common"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const repository = "../.."

// everyValue has other values than the defaults.
const everyValue = "testdata/every-value.yaml"

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := Load(repository)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func values(t *testing.T, text string) Values {
	t.Helper()
	v, err := common.ReadValues([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// objects returns the objects of YAML documents, by kind, namespace and name.
func objects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for document := range bytes.SplitSeq([]byte(text), []byte("\n---\n")) {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		var all map[string]any
		if err := yaml.Unmarshal(document, &all); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		if err := yaml.Unmarshal(document, &o); err != nil || o.Kind == "" {
			t.Fatalf("not an object (%v):\n%s", err, document)
		}
		key := o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
		if out[key] != nil {
			t.Fatalf("%s is there twice", key)
		}
		out[key] = all
	}
	return out
}

func sameObjects(t *testing.T, got, want map[string]map[string]any) {
	t.Helper()
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Fatalf("got the objects\n%q\nwant\n%q", g, w)
	}
	for key := range want {
		if diff := cmp.Diff(want[key], got[key]); diff != "" {
			t.Errorf("%s differs (-want +got):\n%s", key, diff)
		}
	}
}

func TestFilesAreCurrent(t *testing.T) {
	files, err := Files(load(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if read(t, filepath.Join(repository, name)) != want {
			t.Errorf("%s is not what the chart renders: run make manifests", name)
		}
	}
}

// Users of kustomize install what users of kubectl install.
func TestKustomizationsEqualInstallFiles(t *testing.T) {
	for kustomization, file := range map[string]string{"base": "install.yaml", "admin-policies": "install-anp.yaml"} {
		t.Run(kustomization, func(t *testing.T) {
			built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(repository, "kustomize", kustomization))
			if err != nil {
				t.Fatal(err)
			}
			text, err := built.AsYaml()
			if err != nil {
				t.Fatal(err)
			}
			sameObjects(t, objects(t, string(text)), objects(t, read(t, filepath.Join(repository, file))))
		})
	}
}

// The component adds what is needed, also to the kustomization with administrators' kinds.
func TestReadinessComponent(t *testing.T) {
	disk, folder := filesys.MakeFsOnDisk(), t.TempDir()
	if err := os.CopyFS(folder, os.DirFS(filepath.Join(repository, "kustomize"))); err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(folder, "overlay")
	if err := errors.Join(os.Mkdir(overlay, 0o755), os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte("resources: [../admin-policies]\ncomponents: [../readiness]\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, overlay)
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	want := objects(t, read(t, filepath.Join(repository, "install-readiness.yaml")))
	maps.Copy(want, objects(t, read(t, filepath.Join(repository, "install-anp.yaml"))))
	got := objects(t, string(text))
	const deployment = "Deployment kube-system/netpol-status"
	if args := fmt.Sprint(got[deployment]); !strings.Contains(args, "--pod-readiness") {
		t.Errorf("the flag is not set: %s", args)
	}
	delete(got, deployment)
	delete(want, deployment)
	sameObjects(t, got, want)
}

// Without the flag there is neither the right to patch pods nor its guard, and the value guard applies to
// this one, too.
func TestReadinessOfPods(t *testing.T) {
	c := load(t)
	for text, want := range map[string][2]bool{ // the right, the guard
		"{}": {false, false},
		"statusWriter: {flags: {pod-readiness: false}}":                {false, false},
		"statusWriter: {flags: {pod-readiness: true}}":                 {true, true},
		"statusWriter: {guard: false, flags: {pod-readiness: true}}":   {true, false},
		"statusWriter: {enabled: false, flags: {pod-readiness: true}}": {false, false},
	} {
		all := objects(t, render(t, c, values(t, text)))
		got := [2]bool{all["ClusterRole /netpol-status-pods"] != nil, all["ValidatingAdmissionPolicy /netpol-status-pods"] != nil}
		if got != want {
			t.Errorf("%s: right and guard are %v, want %v", text, got, want)
		}
	}
}

// Wherever others may ask the agent, an init container makes its key.
func TestAgentsThatAreAskedHaveKeys(t *testing.T) {
	c := load(t)
	for text, want := range map[string]bool{
		"{}":                                 true,
		read(t, everyValue):                  true,
		"statusWriter: {enabled: false}":     true, // agents ask each other
		"metrics: {secure: {enabled: true}}": true,
		"adminPolicies: true":                true,
		"agent: {flags: {status-bind-address: null}}":                                       false,
		"agent: {flags: {status-bind-address: ''}}":                                         false,
		"{agent: {flags: {status-bind-address: null}}, metrics: {secure: {enabled: true}}}": false,
	} {
		daemonSet := objects(t, render(t, c, values(t, text)))["DaemonSet kube-system/netpol-agent"]
		template := daemonSet["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		asked := strings.Contains(fmt.Sprint(template["containers"]), "--status-bind-address=:")
		if made := template["initContainers"] != nil; asked != want || made != want {
			t.Errorf("%s: the agent is asked %v, and its key is made %v, want %v", text, asked, made, want)
		}
	}
}

func TestLint(t *testing.T) {
	for name, v := range map[string]Values{"defaults": {}, "every value": values(t, read(t, everyValue))} {
		t.Run(name, func(t *testing.T) {
			result := lint.RunAll(filepath.Join(repository, Folder), v, Namespace, lint.WithKubeVersion(&common.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}))
			for _, m := range result.Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
		})
	}
}

// switches are values that every-value.yaml leaves as they are, because others would have
// no effect.
var switches = []string{
	"statusWriter enabled", "statusWriter networkPolicy enabled",
}

// Every value has an effect, alone or together with all others.
func TestEveryValueHasAnEffect(t *testing.T) {
	c := load(t)
	every := func() Values { return values(t, read(t, everyValue)) }
	changed := leaves(nil, every(), c.Values)
	for path, value := range leaves(nil, c.Values, c.Values) {
		if other, ok := changed[path]; (!ok || reflect.DeepEqual(other, value)) && !slices.Contains(switches, path) {
			t.Errorf("%s does not change %s", everyValue, path)
		}
	}
	plain, whole := render(t, c, nil), render(t, c, every())
	for path, value := range changed {
		if slices.Contains(switches, path) {
			continue
		}
		without, alone := every(), Values{}
		set(without, strings.Fields(path), nil)
		set(alone, strings.Fields(path), value)
		if text, err := Documents(c, alone, Version); err == nil && text != plain {
			continue
		}
		if text, err := Documents(c, without, Version); err == nil && text == whole {
			t.Errorf("%s: %v has no effect", path, value)
		}
	}
	objects(t, whole)
}

// Agents may read CIDRGroups only where policies can refer to them.
func TestAgentsReadGroupsWithTheGate(t *testing.T) {
	c := load(t)
	for text, want := range map[string]bool{
		"{}":                               false,
		"adminPolicies: true":              false,
		"featureGates: {CIDRGroups: true}": false,
		"{adminPolicies: true, featureGates: {CIDRGroups: false}}": false,
		"{adminPolicies: true, featureGates: {CIDRGroups: true}}":  true,
	} {
		all := objects(t, render(t, c, values(t, text)))
		for key, o := range all {
			kind, _, _ := strings.Cut(key, " ")
			if kind != "ClusterRole" {
				continue
			}
			may := strings.Contains(fmt.Sprint(o), "cidrgroups")
			if agents := key == "ClusterRole /netpol-agent"; may != (agents && want) {
				t.Errorf("%s: %s may read groups: %v", text, key, may)
			}
		}
		if all["ClusterRole /netpol-agent"] == nil {
			t.Fatal("no role of the agents")
		}
	}
}

// The warnings are about what the agents of these values cannot honour.
func TestWarningsFollowFeatures(t *testing.T) {
	c := load(t)
	for text, want := range map[string]string{
		"{}":                             "",
		"adminPolicies: true":            "domainNames are for rules that allow",
		"featureGates: {EndPort: false}": "endPort is switched off",
		"featureGates: {SCTP: false, EndPort: true}":                "SCTP is switched off",
		"{adminPolicies: true, featureGates: {Nodes: false}}":       "nodes are switched off",
		"{adminPolicies: true, featureGates: {DomainNames: false}}": "domainNames are switched off",
	} {
		out, err := Render(c, values(t, text), Version)
		if err != nil {
			t.Fatal(err)
		}

		if rendered := out[Warnings]; rendered == "" || !strings.Contains(rendered, want) || want == "" && strings.Contains(rendered, "switched off") {
			t.Errorf("%s: want %q in\n%s", text, want, rendered)
		}
		objects(t, out[Warnings])
	}
	off, err := Render(c, values(t, "warnings: false"), Version)
	if err != nil || off[Warnings] != "" {
		t.Errorf("switched off: %v, and rendered are\n%s", err, off[Warnings])
	}
}

func TestSwitches(t *testing.T) {
	c := load(t)
	off, err := Render(c, values(t, "statusWriter: {enabled: false}"), Version)
	if err != nil || off[Writer]+off[WriterGuard] != "" {
		t.Errorf("without a writer: %v, and rendered are\n%s%s", err, off[Writer], off[WriterGuard])
	}
	for _, enabled := range []bool{true, false} {
		t.Run(fmt.Sprintf("writer %v", enabled), func(t *testing.T) {
			text := render(t, c, values(t, fmt.Sprintf("{metrics: {prometheusRule: {enabled: true}}, statusWriter: {enabled: %v}}", enabled)))
			spec := objects(t, text)["PrometheusRule kube-system/netpol-agent"]["spec"].(map[string]any)
			if got, want := len(spec["groups"].([]any)), map[bool]int{true: 2, false: 1}[enabled]; got != want {
				t.Errorf("%d groups of alerts, want %d", got, want)
			}
		})
	}
	old, err := Render(c, nil, "v1.29.4")
	if err != nil || old[Writer] == "" || old[WriterGuard] != "" {
		t.Errorf("before 1.30: %v, and the guard is\n%s", err, old[WriterGuard])
	}
	if old[Warnings] != "" {
		t.Errorf("before 1.30 the warnings are\n%s", old[Warnings])
	}
	open := render(t, c, values(t, "statusWriter: {networkPolicy: {enabled: false}}"))
	if _, found := objects(t, open)["NetworkPolicy kube-system/netpol-status"]; found {
		t.Error("the NetworkPolicy is there, although it is off")
	}
}

// render returns all objects.
func render(t *testing.T, c *chart.Chart, v Values) string {
	t.Helper()
	text, err := Documents(c, v, Version)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// leaves returns values by their paths, with a space between names. A map is a value if it
// has no names by default.
func leaves(path []string, v, defaults Values) map[string]any {
	out := map[string]any{}
	for name, value := range v {
		path := append(slices.Clone(path), name)
		inner, _ := value.(map[string]any)
		if names, _ := defaults[name].(map[string]any); len(names) > 0 && inner != nil {
			maps.Copy(out, leaves(path, inner, names))
			continue
		}
		out[strings.Join(path, " ")] = value
	}
	return out
}

func set(v Values, path []string, value any) {
	for ; len(path) > 1; path = path[1:] {
		inner, ok := v[path[0]].(map[string]any)
		if !ok {
			inner = Values{}
			v[path[0]] = inner
		}
		v = inner
	}
	v[path[0]] = value
}

// TestBadValuesAreRefused expects errors that name the value.
func TestBadValuesAreRefused(t *testing.T) {
	c := load(t)
	for _, test := range []struct{ values, want string }{
		{"agnet: {}", "agnet"},
		{"image: {tag: 'a b'}", "/image/tag"},
		{"image: {repository: 'registry.example/Agent'}", "/image/repository"},
		{"image: {digest: 'sha256:12'}", "/image/digest"},
		{"image: {pullPolicy: Sometimes}", "/image/pullPolicy"},
		{"imagePullSecrets: [secret]", "/imagePullSecrets/0"},
		{"kinds: {adminNetworkPolicy: true}", "write adminPolicies: true"},
		{"adminPolicies: 'yes'", "/adminPolicies"},
		{"featureGates: {Stcp: false}", "Stcp"},
		{"agent: {flags: {fail-opne: true}}", "fail-opne"},
		{"agent: {flags: {fail-open: closed}}", "/agent/flags/fail-open"},
		{"agent: {flags: {fail-open: true}}", "agent.flags.fail-open: true was replaced: write no-agent"},
		{"agent: {flags: {fail-open-queue-full: true}}", "write agent.flags.fail-open: queue-full"},
		{"agent: {flags: {nfqueue-id: 70000}}", "/agent/flags/nfqueue-id"},
		{"agent: {flags: {nfqueue-count: 2}}", "agent.flags.nfqueue-count is no value any more"},
		{"agent: {flags: {otlp-endpoint: 'http://localhost:4318'}}", "agent.flags.flow-log"},
		{"agent: {flags: {max-crashes: 0}}", "agent.flags.max-crashes is no value any more"},
		{"agent: {flags: {block-mark: 0x400}}", "agent.flags.block-mark was removed: agent.flags.mark"},
		{"agent: {flags: {mark: 0x1000}}", "agent.flags.mark: 0x1000 is one bit"},
		{"agent: {flags: {mark: '0x2000'}}", "agent.flags.mark: 0x2000 is one bit"},
		{"agent: {flags: {mark: bit5}}", "/agent/flags/mark"},
		{"agent: {flags: {metrics-bind-address: '9080'}}", "/agent/flags/metrics-bind-address"},
		{"agent: {flags: {metrics-bind-address: 'fd00::1:9080'}}", "/agent/flags/metrics-bind-address"},
		{"agent: {flags: {snapshot-cache: /tmp/snapshot}}", "/agent/flags/snapshot-cache"},
		{"agent: {flags: {cni-cache-dir: /var/lib/cni/x}}", "write the folder as agent.flags.pod-address-source"},
		{"agent: {flags: {pod-address-source: cni-cache}}", "write the folder, /var/lib/cni/results"},
		{"agent: {flags: {pod-address-source: /var/lib/kubelet}}", "/agent/flags/pod-address-source"},
		{"agent: {flags: {hostname-override: node}}", "hostname-override"},
		{"agent: {resources: {limits: {memory: lots}}}", "/agent/resources/limits/memory"},
		{"agent: {tolerations: {operator: Exists}}", "/agent/tolerations"},
		{"agent: {updateStrategy: {type: Recreate}}", "/agent/updateStrategy/type"},
		{"agent: {podAnnotations: {scrape: true}}", "/agent/podAnnotations/scrape"},
		{"agent: {podLabels: {app.kubernetes.io/name: agent}}", "/agent/podLabels"},
		{"statusWriter: {replicas: -1}", "/statusWriter/replicas"},
		{"statusWriter: {guard: maybe}", "/statusWriter/guard"},
		{"statusWriter: {flags: {status-qps: 1}}", "statusWriter.flags.status-qps is no value any more"},
		{"statusWriter: {flags: {status-rate: 1}}", "status-rate"},
		{"statusWriter: {flags: {startup-taint: 'a b'}}", "/statusWriter/flags/startup-taint"},
		{"statusWriter: {flags: {pod-readiness: 'yes'}}", "/statusWriter/flags/pod-readiness"},
		{"statusWriter: {flags: {status-sink: log}}", "/statusWriter/flags/status-sink"},
		{"statusWriter: {denials: {enabled: true}}", "statusWriter.denials was removed"},
		{"agent: {flags: {status-bind-address: localhost}}", "/agent/flags/status-bind-address"},
		{"statusWriter: {metricsPort: 80}", "/statusWriter/metricsPort"},
		{"statusWriter: {networkPolicy: {from: [monitoring]}}", "/statusWriter/networkPolicy/from/0"},
		{"metrics: {podMonitor: {interval: often}}", "/metrics/podMonitor/interval"},
		{"{agent: {flags: {metrics-bind-address: '[::1]:9080'}}, metrics: {podMonitor: {enabled: true}}}", "agent.flags.metrics-bind-address"},
	} {
		t.Run(test.values, func(t *testing.T) {
			_, err := Render(c, values(t, test.values), Version)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: got %v, want an error that names %s", test.values, err, test.want)
			}
		})
	}
}

// A number is never written as 5.0331648e+07, and null leaves a flag at its default.
func TestFlagValues(t *testing.T) {
	rendered, err := Render(load(t), values(t, `
agent: {flags: {mark: 0x3000000, log-denied: false, snapshot-cache: null, max-crashes: null}}
`), Version)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"--mark=50331648", "--log-denied=false"} {
		if !strings.Contains(rendered[Agent], fmt.Sprintf("        - %s\n", want)) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(rendered[Agent], "--snapshot-cache") || strings.Contains(rendered[Agent], "--max-crashes") {
		t.Error("a flag is there, although it is null")
	}
}
