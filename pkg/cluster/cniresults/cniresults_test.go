package cniresults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
)

// cacheFolder is a folder of libcni's, the root of whose files is the test's.
type cacheFolder struct {
	t   *testing.T
	dir string
}

func newFolder(t *testing.T) cacheFolder {
	f := cacheFolder{t, filepath.Join(t.TempDir(), "cni", "results")}
	f.must(os.MkdirAll(f.dir, 0o700))
	return f
}

func (f cacheFolder) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f cacheFolder) write(name, content string) {
	f.t.Helper()
	f.must(os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600))
}

// age sets when a file was written, in seconds.
func (f cacheFolder) age(name string, second int64) {
	f.t.Helper()
	f.must(os.Chtimes(filepath.Join(f.dir, name), time.Unix(second, 0), time.Unix(second, 0)))
}

// text is sandboxes as "UID/CONTAINER ADDRESS …, …".
func text(sandboxes []Sandbox) string {
	var all []string
	for _, s := range sandboxes {
		one := s.UID + "/" + s.Container
		for _, a := range s.Addrs {
			one += " " + a.String()
		}
		all = append(all, one)
	}
	return strings.Join(all, ", ")
}

func TestSandboxes(t *testing.T) {
	f := newFolder(t)
	f.write("kindnet-c1-eth0", containerd("u", "c1", "eth0", ip("10.0.0.1/24")))
	f.write("cni-loopback-c1-lo", containerd("u", "c1", "lo", ip("127.0.0.1/8")))
	f.write("kindnet-c2-eth0", containerd("u", "c2", "eth0", ip("10.0.0.2/24")))
	f.write("multus-c2-eth0", containerd("u", "c2", "eth0", ip("10.0.0.2/24")+","+ip("fd00::2/64")))
	f.write("other-c2-eth0", containerd("other", "c2", "eth0", ip("10.0.0.9/24")))
	for name, second := range map[string]int64{"kindnet-c1-eth0": 2, "kindnet-c2-eth0": 3, "multus-c2-eth0": 3, "other-c2-eth0": 1} {
		f.age(name, second)
	}
	d := folder{path: f.dir}
	report := func(err *fault) { t.Errorf("fault: %v", err) }
	check := func(want string) {
		t.Helper()
		f.must(d.read(report))
		if got := text(d.sandboxes()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	check("u/c2 10.0.0.2 fd00::2, u/c1 10.0.0.1")
	f.age("kindnet-c1-eth0", 4)
	check("u/c1 10.0.0.1, u/c2 10.0.0.2 fd00::2")
	f.must(os.Remove(filepath.Join(f.dir, "kindnet-c1-eth0")))
	check("u/c2 10.0.0.2 fd00::2")
	f.write("kindnet-c2-eth0", containerd("u", "c2", "eth0", ip("10.0.0.7/24")))
	f.age("kindnet-c2-eth0", 5)
	check("u/c2 10.0.0.2 10.0.0.7 fd00::2")
}

func TestFaults(t *testing.T) {
	f := newFolder(t)
	good := containerd("u", "c", "eth0", ip("10.0.0.1/24"))
	f.write("good", good)
	f.write("empty", "")
	f.write("malformed", good[:100])
	f.write("long", good+strings.Repeat(" ", maxBytes))
	f.must(os.Mkdir(filepath.Join(f.dir, "folder"), 0o700))
	f.must(unix.Mkfifo(filepath.Join(f.dir, "fifo"), 0o600)) // which would wait for a writer
	f.must(os.Symlink(filepath.Join(f.dir, "good"), filepath.Join(f.dir, "link")))
	d := folder{path: f.dir}
	var faults []string
	report := func(err *fault) {
		name, _, _ := strings.Cut(err.Error(), ":")
		faults = append(faults, name)
	}
	for range 2 { // each is reported once
		f.must(d.read(report))
	}
	slices.Sort(faults)
	if got, want := fmt.Sprint(faults), `["link" "long" "malformed"]`; got != want {
		t.Errorf("faults of %s, want %s", got, want)
	}
	if got := text(d.sandboxes()); got != "u/c 10.0.0.1" {
		t.Errorf("sandboxes %s", got)
	}
	f.write("malformed", strings.Replace(good, `"c"`, `"d"`, 1)) // it was half written
	f.must(d.read(report))
	if got := text(d.sandboxes()); !strings.Contains(got, "u/d 10.0.0.1") {
		t.Errorf("after it was written, sandboxes %s", got)
	}
}

func TestTooManyFiles(t *testing.T) {
	f := newFolder(t)
	f.write("first", "")
	for i := range maxFiles {
		f.must(os.Link(filepath.Join(f.dir, "first"), filepath.Join(f.dir, fmt.Sprint(i))))
	}
	d := folder{path: f.dir}
	var faults []string
	for range 2 {
		if err := d.read(func(err *fault) { faults = append(faults, err.Error()) }); err == nil {
			t.Error("a folder that is not read whole is not an error")
		}
	}
	if len(d.files) != 0 || len(faults) != 1 || !strings.Contains(faults[0], "more than 4096 files") {
		t.Errorf("%d files, faults %v", len(d.files), faults)
	}
}

// TestRun checks that changes are noticed even if the folder is removed or replaced.
func TestRun(t *testing.T) {
	f := newFolder(t)
	f.must(os.RemoveAll(filepath.Dir(f.dir))) // there is nothing at first
	f.must(os.Mkdir(filepath.Dir(f.dir), 0o700))
	reg := prometheus.NewRegistry()
	states := make(chan string, 100)
	c, err := New(Config{Dir: f.dir, Registerer: reg, Changed: func(s []Sandbox) { states <- text(s) }})
	f.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	wait := func(want string) {
		t.Helper()
		var got string
		for limit := time.After(time.Minute); ; {
			select {
			case got = <-states:
			case <-limit:
				t.Fatalf("sandboxes %q after a minute, want %q", got, want)
			}
			if got == want {
				return
			}
		}
	}
	wait("")
	if err := c.Healthy(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	write := func(name, addr string) { f.write(name, containerd("u", name, "eth0", ip(addr))) }
	f.must(os.Mkdir(f.dir, 0o700))
	f.write("broken", "{")
	write("a", "10.0.0.1/24")
	wait("u/a 10.0.0.1")
	if err := c.Healthy(); err != nil {
		t.Errorf("with a folder: %v", err)
	}
	if got := testutil.ToFloat64(c.metrics.source.WithLabelValues(sourceCache)); got != 1 {
		t.Errorf("the metric of the source is %v", got)
	}
	f.must(os.Remove(filepath.Join(f.dir, "a")))
	wait("")
	write("b", "10.0.0.2/24")
	wait("u/b 10.0.0.2")
	f.must(os.Rename(f.dir, f.dir+".old")) // replaced by another one
	wait("")
	f.must(os.Mkdir(f.dir, 0o700))
	write("c", "10.0.0.3/24")
	wait("u/c 10.0.0.3")
	f.must(os.RemoveAll(f.dir))
	wait("")
	f.must(os.Mkdir(f.dir, 0o700))
	half := containerd("u", "d", "eth0", ip("10.0.0.4/24"))
	f.write("d", half[:50])
	f.write("e", containerd("u", "e", "eth0", ip("10.0.0.5/24")))
	wait("u/e 10.0.0.5")
	file, err := os.OpenFile(filepath.Join(f.dir, "d"), os.O_WRONLY|os.O_APPEND, 0)
	f.must(err)
	_, err = file.WriteString(half[50:])
	f.must(errors.Join(err, file.Close()))
	f.age("d", 1)
	wait("u/e 10.0.0.5, u/d 10.0.0.4")
	cancel()
	f.must(<-done)
}

func TestConfig(t *testing.T) {
	_, err := New(Config{Dir: "results"})
	for _, want := range []string{`Dir "results"`, "Changed is nil", "Registerer is nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
