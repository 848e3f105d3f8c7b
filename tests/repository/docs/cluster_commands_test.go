package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The commands that need a cluster run nowhere in the tests. What they name can still be
// compared with the manifests.
var (
	// applied is a file of a kubectl command. Standard input and URLs are none.
	applied = regexp.MustCompile(`kubectl (?:apply|delete)((?: -f [\w./-]+\.yaml)+)`)
	file    = regexp.MustCompile(`-f (\S+)`)
	// inNamespace has the namespace of a command, and the rest of it.
	inNamespace = regexp.MustCompile(`kubectl (?:-n (\S+) )(.*)`)
	workload    = regexp.MustCompile(`\b(daemonset|deployment|job)[/ ]([a-z][a-z0-9-]*)`)
	selected    = regexp.MustCompile(`-l ([\w./-]+=[\w-]+)`)
	loaded      = regexp.MustCompile(`kind load docker-image (\S+)`)
	makeImage   = regexp.MustCompile(`docker build .* -t (\S+) \.\n`)
)

// manifest is what the commands name of an object.
type manifest struct {
	Kind     string
	Metadata metav1.ObjectMeta
	Spec     struct{ Template corev1.PodTemplateSpec }
}

// manifests are the objects of the YAML files that users apply.
func manifests(t *testing.T) []manifest {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".yaml") {
			names = append(names, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []manifest
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(content), "\n---") {
			var m manifest
			if err := yaml.Unmarshal([]byte(document), &m); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			all = append(all, m)
		}
	}
	return all
}

// TestShownClusterCommandsNameWhatExists: the files, workloads, labels and images of
// the kubectl and kind commands in the documentation.
func TestShownClusterCommandsNameWhatExists(t *testing.T) {
	all := manifests(t)
	plan := exec.Command("make", "--dry-run", "image")
	plan.Dir = root
	build, err := plan.CombinedOutput()
	m := makeImage.FindSubmatch(build)
	if err != nil || m == nil {
		t.Fatalf("what does make build? %v\n%s", err, build)
	}
	image := string(m[1])
	shown := 0
	for name, text := range texts(t) {
		if name == "CHANGELOG.md" {
			continue
		}
		for line := range strings.Lines(text) {
			for _, path := range shownFiles(line) {
				shown++
				if !exists(path) && !exists(filepath.Join(filepath.Dir(name), path)) {
					t.Errorf("%s applies %s, which does not exist", name, path)
				}
			}
			for _, m := range loaded.FindAllStringSubmatch(line, -1) {
				shown++
				if m[1] != image || !slices.ContainsFunc(all, func(m manifest) bool { return m.runs(image) }) {
					t.Errorf("%s loads the image %s; the Makefile builds %s, and a manifest has to name it", name, m[1], image)
				}
			}
			m := inNamespace.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			namespace, command := m[1], m[2]
			for _, w := range workload.FindAllStringSubmatch(command, -1) {
				shown++
				if !slices.ContainsFunc(all, func(m manifest) bool {
					return strings.EqualFold(m.Kind, w[1]) && m.Metadata.Name == w[2] && m.Metadata.Namespace == namespace
				}) {
					t.Errorf("%s names the %s %s of namespace %s, which no manifest has", name, w[1], w[2], namespace)
				}
			}
			for _, l := range selected.FindAllStringSubmatch(command, -1) {
				shown++
				key, value, _ := strings.Cut(l[1], "=")
				if !slices.ContainsFunc(all, func(m manifest) bool {
					return m.Metadata.Namespace == namespace && m.Spec.Template.Labels[key] == value
				}) {
					t.Errorf("%s selects pods of namespace %s with %s, which no manifest has", name, namespace, l[1])
				}
			}
		}
	}
	if shown < 25 {
		t.Errorf("found %d names in the commands of the documentation: the search is wrong", shown)
	}
}

// shownFiles are the files that a line applies or deletes.
func shownFiles(line string) []string {
	var paths []string
	for _, m := range applied.FindAllStringSubmatch(line, -1) {
		for _, f := range file.FindAllStringSubmatch(m[1], -1) {
			paths = append(paths, f[1])
		}
	}
	return paths
}

func exists(path string) bool {
	_, err := os.Stat(filepath.Join(root, path))
	return err == nil
}

// runs reports whether pods of the manifest run an image.
func (m *manifest) runs(image string) bool {
	return slices.ContainsFunc(m.Spec.Template.Spec.Containers, func(c corev1.Container) bool { return c.Image == image })
}

var (
	nftCommand = regexp.MustCompile(`nft (?:list|get|add|delete) (?:table|set|counter|element) inet netpol-agent(?: ([a-z][a-z0-9-]*))?`)
	nftObject  = regexp.MustCompile(`(?m)^set ([a-z][a-z0-9-]*) \{|\bcounter name ([a-z-]+)`)
)

// TestShownNftCommandsNameWhatExists: sets and counters of the table. The golden file has the
// sets and the rules of every table that the agent writes.
func TestShownNftCommandsNameWhatExists(t *testing.T) {
	var objects []string
	for _, m := range nftObject.FindAllStringSubmatch(read(t, "pkg/kernel/steer/testdata/rules.golden"), -1) {
		objects = append(objects, m[1]+m[2])
	}
	shown := 0
	for name, text := range texts(t) {
		for _, m := range nftCommand.FindAllStringSubmatch(text, -1) {
			shown++
			if m[1] != "" && !slices.Contains(objects, m[1]) {
				t.Errorf("%s: %s: no ruleset has %s", name, m[0], m[1])
			}
		}
	}
	if shown < 5 {
		t.Errorf("found %d nft commands: the search is wrong", shown)
	}
}
