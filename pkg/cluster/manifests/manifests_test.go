package manifests

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2/ktesting"
)

// folder is a directory of manifests and the Source that reads it.
type folder struct {
	*Source
	t *testing.T
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	s, err := New(t.TempDir(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return &folder{s, t}
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f *folder) write(name, text string) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(f.path(name)), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(f.path(name), []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// rename writes a temporary file and renames it to name, as careful writers do.
func (f *folder) rename(name, text string) {
	f.t.Helper()
	f.write(name+".tmp", text)
	if err := os.Rename(f.path(name+".tmp"), f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *folder) remove(name string) {
	f.t.Helper()
	if err := os.RemoveAll(f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

// link makes name a link to target, and replaces an existing link atomically.
func (f *folder) link(target, name string) {
	f.t.Helper()
	if err := os.Symlink(target, f.path(name+".new")); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(f.path(name+".new"), f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

// expect reads the directory and compares the served objects and the faults.
func (f *folder) expect(objects string, faults ...string) {
	f.t.Helper()
	_, ctx := ktesting.NewTestContext(f.t)
	f.read(ctx, func(string) error { return nil })
	if got := f.served(); got != objects {
		f.t.Errorf("serves %q, want %q", got, objects)
	}
	var got []string
	for _, name := range slices.Sorted(maps.Keys(f.faults)) {
		got = append(got, fmt.Sprintf("%s:%d", name, f.faults[name].Line))
	}
	if !slices.Equal(got, faults) {
		f.t.Errorf("faults at %q, want %q: %v", got, faults, f.faults)
	}
	if n := testutil.ToFloat64(f.metrics.errors); int(n) != len(faults) {
		f.t.Errorf("%v errors in the metric, want %d", n, len(faults))
	}
}

// served returns the content of the tables in a line, pods with their labels.
func (f *folder) served() string {
	var s []string
	for _, table := range f.tables {
		for key, row := range table.rows {
			if v := row.object.GetLabels()["v"]; v != "" {
				key += "=" + v
			}
			s = append(s, key)
		}
	}
	slices.Sort(s)
	return strings.Join(s, ", ")
}

// podV is a pod with a version in a label.
func podV(name, version string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name + "\n  labels:\n    v: \"" + version + "\"\n"
}

func TestFilesAreFoundByName(t *testing.T) {
	f := newFolder(t)
	for i, name := range []string{
		"a.yaml", "b.yml", "c.json", "deep/er/d.yaml", // these count
		".hidden.yaml", ".git/e.yaml", "README.md", "f.yaml~", "g.yaml.swp", "#h.yaml#", "i.YAML", "yaml",
	} {
		f.write(name, podV("p"+string(rune('a'+i)), "1"))
	}
	if err := os.Mkdir(f.path("folder.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.expect("Pod default/pa=1, Pod default/pb=1, Pod default/pc=1, Pod default/pd=1")
}

func TestWhatAFileLastSaidStaysInForceWhileItIsWrong(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", podV("a", "1")+"---\n"+podV("b", "1"))
	f.write("c.yaml", podV("c", "1"))
	f.expect("Pod default/a=1, Pod default/b=1, Pod default/c=1")

	f.write("a.yaml", podV("a", "2")+"---\n"+podV("b", "2")+"status:\n  podIPs: [{ip: 1.2.3}]\n")
	f.write("c.yaml", podV("c", "2"))
	f.expect("Pod default/a=1, Pod default/b=1, Pod default/c=2", "a.yaml:15")

	f.write("a.yaml", "")
	f.expect("Pod default/a=1, Pod default/b=1, Pod default/c=2", "a.yaml:0")

	f.write("a.yaml", podV("a", "3"))
	f.expect("Pod default/a=3, Pod default/c=2")
}

func TestAFileThatWasNeverRightSaysNothing(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", "kind: Pod\n")
	f.write("b.yaml", podV("b", "1"))
	f.expect("Pod default/b=1", "a.yaml:1")
	f.remove("a.yaml")
	f.expect("Pod default/b=1")
}

func TestARemovedFileTakesItsObjectsWithIt(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", podV("a", "1"))
	f.write("sub/b.yaml", podV("b", "1"))
	f.expect("Pod default/a=1, Pod default/b=1")
	f.remove("a.yaml")
	f.expect("Pod default/b=1")
	f.remove("sub")
	f.expect("")
}

func TestTheFirstOfTwoFilesHasAnObject(t *testing.T) {
	f := newFolder(t)
	f.write("b.yaml", podV("a", "2"))
	f.expect("Pod default/a=2")
	f.write("a.yaml", podV("a", "1"))
	f.write("c.yaml", "---\n"+podV("c", "3")+"---\n"+podV("a", "3"))
	f.expect("Pod default/a=1, Pod default/c=3", "b.yaml:1", "c.yaml:9")
	f.remove("a.yaml")
	f.expect("Pod default/a=2, Pod default/c=3", "c.yaml:9")
}

func TestLinksAreFollowed(t *testing.T) {
	f := newFolder(t)
	// What the kubelet makes of a ConfigMap.
	f.write("..1/a.yaml", podV("a", "1"))
	f.write("..1/sub/b.yaml", podV("b", "1"))
	f.link("..1", "..data")
	f.link("..data/a.yaml", "a.yaml")
	f.link("..data/sub", "sub")
	f.expect("Pod default/a=1, Pod default/b=1")
	f.write("..2/a.yaml", podV("a", "2"))
	f.write("..2/sub/b.yaml", podV("b", "2"))
	f.link("..2", "..data")
	f.remove("..1")
	f.expect("Pod default/a=2, Pod default/b=2")

	f.link("..data/gone.yaml", "gone.yaml")
	f.link("..", "loop")
	f.link(".", "self")
	f.expect("Pod default/a=2, Pod default/b=2", "gone.yaml:0")
}

func TestWhatCannotBeReadKeepsWhatItSaid(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", podV("a", "1"))
	f.write("b.yaml", podV("b", "1"))
	f.write("sub/c.yaml", podV("c", "1"))
	all := "Pod default/a=1, Pod default/b=1, Pod default/c=1"
	f.expect(all)

	f.remove("b.yaml") // a device in its place
	f.link("/dev/null", "b.yaml")
	f.remove("sub") // a folder that leads nowhere
	f.link("nowhere", "sub.yaml")
	f.expect("Pod default/a=1, Pod default/b=1", "b.yaml:0", "sub.yaml:0")

	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	f.expect("Pod default/a=1, Pod default/b=1", ".:0")
	f.write("a.yaml", podV("a", "2"))
	f.expect("Pod default/a=2")
}

func TestFilesOfAFolderThatCannotBeReadAreKept(t *testing.T) {
	f := newFolder(t)
	for _, name := range []string{"a.yaml", "sub/b.yaml", "sub/er/c.yaml", "sub2/d.yaml"} {
		f.files[name] = &file{}
	}
	f.remember(t.Context(), tree{unread: map[string]error{"sub": fs.ErrPermission}})
	if got, want := slices.Sorted(maps.Keys(f.files)), []string{"sub/b.yaml", "sub/er/c.yaml"}; !slices.Equal(got, want) {
		t.Errorf("remembers %q, want %q", got, want)
	}
}

func TestAFolderThatIsNotWatchedIsReadAndReported(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", podV("a", "1"))
	f.read(t.Context(), func(string) error { return fs.ErrPermission })
	if got := f.served(); got != "Pod default/a=1" || len(f.faults) != 1 {
		t.Errorf("serves %q, faults %v", got, f.faults)
	}
}

func TestNewRefusesWhatIsNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, file + "-not-there"} {
		if _, err := New(dir, prometheus.NewRegistry()); err == nil || !strings.Contains(err.Error(), `"`+dir+`"`) {
			t.Errorf("New(%q): %v, want an error that names it", dir, err)
		}
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg)
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// run starts the Source for the rest of the test.
func (f *folder) run() {
	_, ctx := ktesting.NewTestContext(f.t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	})
}
