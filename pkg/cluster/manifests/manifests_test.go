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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// folder is a directory of manifests and the Source that reads it.
type folder struct {
	*Source
	t          *testing.T
	incomplete []*corev1.Pod // of the last read that was
}

func newFolder(t *testing.T) *folder {
	t.Helper()
	f := &folder{t: t}
	s, err := New(t.TempDir(), func(pods []*corev1.Pod, _ []*corev1.Node) { f.incomplete = pods }, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	f.Source = s
	return f
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
	f.use(ctx, walk(f.dir, os.ReadDir))
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
	f.write("b.yaml", podV("b", "1"))
	f.expect("Pod default/b=1")
	f.write("a.yaml", "kind: Pod\n")
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

// TestTheFirstReadMustBeWhole: until all files have been valid at once, nothing is served, and the error
// names files and lines.
func TestTheFirstReadMustBeWhole(t *testing.T) {
	pod, typo := podV("a", "1"), podV("b", "1")+"spc: {}\n"
	for _, tc := range []struct {
		name string
		make func(f *folder)
		want []string // in the error
	}{
		{"a misspelt field", func(f *folder) { f.write("b.yaml", typo) }, []string{"b.yaml:7: ", `unknown field "spc"`}},
		{"a misspelt field in a folder", func(f *folder) { f.write("sub/b.json", `{"apiVersion":"v1","kind":"Pod","spc":1}`) }, []string{"sub/b.json:1: "}},
		{"a misspelt kind", func(f *folder) {
			f.write("b.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolcy\nmetadata: {name: p}\n")
		}, []string{`b.yaml:2: kind "NetworkPolcy" of networking.k8s.io/v1: is NetworkPolicy meant?`}},
		{"a newer version", func(f *folder) {
			f.write("b.yaml", "apiVersion: networking.k8s.io/v2\nkind: NetworkPolicy\nmetadata: {name: p}\n")
		}, []string{"b.yaml:1: NetworkPolicy of version networking.k8s.io/v2 is not read"}},
		{"half a file", func(f *folder) { f.write("b.yaml", pod+"---\napiVersion: v1\nki") }, []string{"b.yaml:"}},
		{"an empty file", func(f *folder) { f.write("b.yaml", "") }, []string{"b.yaml: file is empty"}},
		{"two invalid files", func(f *folder) { f.write("b.yaml", typo); f.write("c.yaml", "}") }, []string{"b.yaml:7: ", "c.yaml:1: "}},
		{"more than an error has room for", func(f *folder) {
			for i := range maxNamed + 2 {
				f.write(fmt.Sprintf("b%02d.yaml", i), "}")
			}
		}, []string{"b00.yaml:1: ", "b09.yaml:1: ", "\n2 more files"}},
		{"an object in two files", func(f *folder) { f.write("b.yaml", pod) }, []string{"b.yaml:1: Pod default/a is already in a.yaml"}},
		{"a device", func(f *folder) { f.link("/dev/null", "b.yaml") }, []string{"b.yaml: ", "not a regular file"}},
		{"a file that is too large", func(f *folder) {
			f.write("b.yaml", "")
			if err := os.Truncate(f.path("b.yaml"), maxFileSize+1); err != nil {
				f.t.Fatal(err)
			}
		}, []string{"b.yaml: larger than"}},
		{"a link to a file that is gone", func(f *folder) { f.link("..data/b.yaml", "b.yaml") }, []string{"b.yaml: ", "no such file"}},
		{"a link to a folder that is gone", func(f *folder) { f.link("/mnt/policies-of-no-one", "policies") }, []string{"policies: ", "no such file"}},
		{"no file at all", func(f *folder) { f.remove("a.yaml") }, []string{"no manifests"}},
		{"no folder", func(f *folder) { f.remove("") }, []string{"no such file"}},
		{"a file in place of the folder", func(f *folder) {
			f.remove("")
			if err := os.WriteFile(f.dir, nil, 0o600); err != nil {
				f.t.Fatal(err)
			}
		}, []string{"not a directory"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFolder(t)
			_, ctx := ktesting.NewTestContext(t)
			if err := f.Complete(); err == nil || !strings.Contains(err.Error(), f.dir) {
				t.Errorf("before it is read: %v", err)
			}
			f.write("a.yaml", pod)
			tc.make(f)
			f.use(ctx, walk(f.dir, os.ReadDir))
			err := f.Complete()
			for _, want := range append(tc.want, f.dir) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q in it", err, want)
				}
			}
			if got := f.served(); got != "" || f.isReady() {
				t.Errorf("serves %q", got)
			}
			if _, err := os.Stat(f.path("a.yaml")); err == nil && (len(f.incomplete) != 1 || f.incomplete[0].Name != "a") {
				t.Errorf("the valid pod is not reported: %v", f.incomplete)
			}
			f.remove("")
			f.write("a.yaml", pod)
			f.expect("Pod default/a=1")
			if err := f.Complete(); err != nil || !f.isReady() {
				t.Errorf("with valid files: %v", err)
			}
			f.write("c.yaml", "}") // later, others stay in force
			f.expect("Pod default/a=1", "c.yaml:1")
			if err := f.Complete(); err != nil {
				t.Errorf("an invalid file that is new: %v", err)
			}
		})
	}
}

// TestTheLogSaysWhatHolds: that something stays in force is logged only where there is something.
func TestTheLogSaysWhatHolds(t *testing.T) {
	f := newFolder(t)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(t.Context(), logger)
	seen := 0
	const stays, nothing, closed = "its last valid content stays in force", "nothing in it is in force", "no policy is enforced, and new connections of pods wait"
	for _, step := range []struct {
		name string
		make func()
		want string
	}{
		{"invalid at the start", func() { f.write("a.yaml", podV("a", "1")); f.write("b.yaml", "[") }, closed},
		{"otherwise invalid", func() { f.write("b.yaml", "\n[") }, closed},
		{"valid", func() { f.write("b.yaml", podV("b", "1")) }, "valid again"},
		{"invalid later", func() { f.write("b.yaml", "]") }, stays},
		{"and unreadable", func() { f.remove("b.yaml"); f.link("/dev/null", "b.yaml") }, stays},
		{"removed", func() { f.remove("b.yaml") }, "or removed"},
		{"new and invalid", func() { f.write("c.yaml", "}") }, nothing},
		{"new and unreadable", func() { f.remove("c.yaml"); f.link("/dev/null", "c.yaml") }, nothing},
		{"valid at last", func() { f.remove("c.yaml"); f.write("c.yaml", podV("c", "1")) }, "valid again"},
		{"an object of another file", func() { f.write("c.yaml", podV("a", "2")) }, "the object that an earlier file has is not taken"},
		{"not that any more", func() { f.remove("c.yaml") }, "or removed"},
		{"no folder", func() { f.remove("") }, stays},
	} {
		step.make()
		for range 2 { // the second logs nothing more
			f.use(ctx, walk(f.dir, os.ReadDir))
		}
		text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if now := text[seen:]; strings.Count(now, "\n") != 1 || !strings.Contains(now, step.want) {
			t.Errorf("%s: logs %q, want a line with %q", step.name, now, step.want)
		}
		seen = len(text)
	}
}

// TestASwapDuringAReadLosesNothing: the link to all files changes after the first folder was found, and an
// object moves into that folder from one that is read later.
func TestASwapDuringAReadLosesNothing(t *testing.T) {
	f := newFolder(t)
	f.write("..1/p/a.yaml", podV("a", "1"))
	f.write("..1/q/b.yaml", podV("b", "1")+"---\n"+podV("x", "1"))
	f.write("..2/p/a.yaml", podV("a", "2")+"---\n"+podV("x", "2"))
	f.write("..2/q/b.yaml", podV("b", "2"))
	f.link("..1", "..data")
	f.link("..data/p", "p")
	f.link("..data/q", "q")
	swaps := 0
	f.readDir = func(folder string) ([]fs.DirEntry, error) {
		if swaps == 0 && strings.HasSuffix(folder, "..1/p") {
			swaps++
			f.link("..2", "..data")
		}
		return os.ReadDir(folder)
	}
	for range 3 {
		f.look(t.Context())
	}
	if got, want := f.served(), "Pod default/a=2, Pod default/b=2, Pod default/x=2"; got != want || swaps != 1 {
		t.Errorf("after %d swaps serves %q, want %q", swaps, got, want)
	}

	f.readDir = func(folder string) ([]fs.DirEntry, error) {
		if strings.HasSuffix(folder, "/q") {
			swaps++
			f.write("..2/q/b.yaml", podV("b", fmt.Sprint(swaps)))
		}
		return os.ReadDir(folder)
	}
	for range 2 * mostChanges {
		f.look(t.Context())
	}
	if got, want := f.served(), "Pod default/a=2, Pod default/b=2, Pod default/x=2"; got != want || len(f.faults) != 1 {
		t.Errorf("while files change all the time serves %q, want %q; %v", got, want, f.faults)
	}
	f.readDir = os.ReadDir
	for range 2 {
		f.look(t.Context())
	}
	if got, want := f.served(), fmt.Sprintf("Pod default/a=2, Pod default/b=%d, Pod default/x=2", swaps); got != want || len(f.faults) != 0 {
		t.Errorf("after the changes serves %q, want %q; %v", got, want, f.faults)
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
