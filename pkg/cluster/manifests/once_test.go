package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const aNamespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: %}\n"

func namespace(name string) string { return strings.ReplaceAll(aNamespace, "%", name) }

func TestReadTakesDirectoriesFilesAndStandardInput(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "tree/nested/b.yaml", namespace("b"))
	write(t, dir, "tree/a.yaml", namespace("a"))
	write(t, dir, "tree/ignored.txt", namespace("no"))
	file := write(t, dir, "c.anything", namespace("c"))
	o, err := Read([]string{filepath.Join(dir, "tree"), file, Stdin}, strings.NewReader(namespace("d")))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ns := range o.Namespaces {
		got = append(got, ns.Name)
	}
	if want := "a b c d"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReadTakesEveryKind(t *testing.T) {
	file := write(t, t.TempDir(), "all.yaml", strings.Join([]string{namespaceX, podA, denyAll, adminPolicy, baselinePolicy, clusterPolicy, nodeN}, "---\n"))
	o, err := Read([]string{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Namespaces) != 1 || len(o.Pods) != 1 || len(o.Nodes) != 1 {
		t.Errorf("got %+v, want one of each", o)
	}
	var kinds []*compile.Kind
	for _, p := range o.Policies {
		kinds = append(kinds, compile.KindOf(p))
	}
	if !slices.Equal(kinds, compile.Kinds) {
		t.Fatalf("got policies of the kinds %v, want one of each of %v", kinds, compile.Kinds)
	}
	if got := o.Policies[3].(*proposed.ClusterNetworkPolicy).Spec.Egress[0].To[0].DomainNames; len(got) != 1 || got[0] != "*.example.com" {
		t.Errorf("domain names %q", got)
	}
}

func TestReadNamesEveryFaultWithFileAndLine(t *testing.T) {
	dir := t.TempDir()
	odd := write(t, dir, "odd.yaml", "# a comment\n"+namespace("a")+"odd: field\n")
	write(t, dir, "one.yaml", namespace("b"))
	two := write(t, dir, "two.yaml", "\n\n"+namespace("b"))
	empty := write(t, dir, "zero.yaml", "")
	_, err := Read([]string{dir, filepath.Join(dir, "missing")}, nil)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{odd + ":5: ", two + ":3: Namespace b is already in ", empty + ": file is empty", "missing: no such file"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}
