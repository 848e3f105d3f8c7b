package integration

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// installed are the kinds of all objects that are installed.
const installed = "serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,daemonsets,deployments,networkpolicies,validatingadmissionpolicies,validatingadmissionpolicybindings,configmaps"

// TestInstallationsReplaceEachOther runs commands of the documentation over an earlier installation. The result
// must be that of a new installation, but for what they are documented to leave.
func TestInstallationsReplaceEachOther(t *testing.T) {
	const (
		apply  = "kubectl apply -f "
		server = "kubectl apply --server-side -f "
		helm4  = "kubectl apply --server-side --field-manager=helm -f " // as Helm does
		helm3  = "kubectl create --field-manager=helm -f "

		plain, admin, chart, values, old = "install.yaml", "install-anp.yaml", "chart.yaml", "values.yaml", "install-0.2.0.yaml"
	)
	folder := t.TempDir()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, file := range map[string]string{plain: installFile, admin: installAdminFile, old: "testdata/install-0.2.0.yaml"} {
		write(name, must[[]byte](t)(os.ReadFile(file)))
	}
	write("none", nil)
	for name, values := range map[string]string{chart: filepath.Join(folder, "none"), values: "chart/testdata/every-value.yaml"} {
		objects, _ := renderChart(t, values, "v1.37.0")
		write(name, []byte(strings.Join(slices.DeleteFunc(objects, operatorKinds.MatchString), "\n---\n")))
	}
	k := newKubectl(t, newest.start(t).Admin())
	run := func(t *testing.T, commands string) {
		t.Helper()
		bash := exec.CommandContext(t.Context(), "bash", "-c", commands)
		bash.Dir = folder
		bash.Env = append(os.Environ(), "PATH="+filepath.Dir(k.binary)+":"+os.Getenv("PATH"), "KUBECONFIG="+filepath.Join(k.home, "kubeconfig"))
		if out, err := bash.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", commands, err, out)
		}
	}
	remove := func(t *testing.T) {
		t.Helper()
		run(t, "kubectl delete --ignore-not-found -f install-anp.yaml -f chart.yaml -f values.yaml -f install-0.2.0.yaml")
	}
	// state has the content of all objects, by kind and name.
	state := func(t *testing.T) map[string]string {
		t.Helper()
		all := map[string]string{}
		for line := range strings.Lines(k.run("get", installed, "-A", "-o",
			`jsonpath={range .items[*]}{.kind} {.metadata.name}{"\t"}{.metadata.labels} {.rules} {.roleRef} {.subjects} {.spec} {.data}{"\n"}{end}`)) {
			if name, content, _ := strings.Cut(line, "\t"); strings.Contains(name, "netpol") || strings.Contains(name, "kube-network-policies") {
				all[name] = content
			}
		}
		return all
	}
	remove(t)
	fresh := map[string]map[string]string{}
	for _, file := range []string{plain, admin, chart, old} {
		run(t, apply+file)
		fresh[file] = state(t)
		remove(t)
	}
	if left := state(t); len(left) > 0 {
		t.Fatalf("left after the deletion of all files: %v", left)
	}

	dns := []string{"Role netpol-agent", "RoleBinding netpol-agent"}
	guards := []string{"ValidatingAdmissionPolicy netpol-status", "ValidatingAdmissionPolicy netpol-warnings",
		"ValidatingAdmissionPolicyBinding netpol-status", "ValidatingAdmissionPolicyBinding netpol-warnings"}
	backToPlain := commandsOf(t, "docs/install/README.md", "kubectl -n kube-system delete role,rolebinding netpol-agent")
	fromValues := commandsOf(t, "docs/install/README.md", "kubectl replace -f install.yaml")
	deleteOld := commandsOf(t, "docs/operations.md", "old='app.kubernetes.io/name in")
	for _, m := range []struct {
		earlier, commands, file string
		left                    []string
	}{
		{earlier: apply + plain, commands: apply + admin, file: admin},
		{earlier: apply + admin, commands: apply + plain + "\n" + backToPlain, file: plain},
		{earlier: apply + plain, commands: server + plain, file: plain},
		{earlier: server + plain, commands: apply + plain, file: plain},
		{earlier: apply + plain, commands: server + admin, file: admin},
		{earlier: server + admin, commands: apply + plain + "\n" + backToPlain, file: plain},
		{earlier: helm4 + chart, commands: server + "install-anp.yaml --force-conflicts", file: admin, left: guards},
		{earlier: helm3 + chart, commands: apply + admin, file: admin, left: guards},
		{earlier: helm3 + chart, commands: server + plain, file: plain, left: guards},
		{earlier: apply + plain, commands: helm4 + chart, file: chart},
		{earlier: helm4 + values, commands: fromValues, file: plain},
		{earlier: apply + old, commands: apply + plain + "\n" + deleteOld, file: plain},
		{earlier: server + old, commands: server + admin + "\n" + deleteOld, file: admin},
		{earlier: apply + plain, commands: apply + old + "\nkubectl delete -f " + plain, file: old},
		{earlier: apply + admin, commands: "kubectl delete -f " + admin},
		{earlier: apply + admin, commands: "kubectl delete -f " + plain, left: dns},
	} {
		t.Run(m.earlier+" before "+cmp.Or(m.file, m.commands), func(t *testing.T) {
			defer remove(t)
			run(t, m.earlier)
			run(t, "set -e\n"+m.commands)
			got := state(t)
			for _, name := range m.left {
				if _, ok := got[name]; !ok {
					t.Errorf("%s is not left", name)
				}
				delete(got, name)
			}
			if diff := gocmp.Diff(fresh[m.file], got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("it differs from a new installation, -want +got:\n%s", diff)
			}
		})
	}
}

// commandsOf returns the block of commands of a page that has this text.
func commandsOf(t *testing.T, page, text string) string {
	t.Helper()
	for i, block := range strings.Split(string(must[[]byte](t)(os.ReadFile("../../../"+page))), "```") {
		if i%2 == 1 && strings.Contains(block, text) {
			return block[strings.Index(block, "\n"):]
		}
	}
	t.Fatalf("%s has no commands with %q", page, text)
	return ""
}
