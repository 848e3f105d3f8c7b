package sealedfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

var format = Format{Title: "test 1 ", MaxFile: 200, MaxContent: 1000}

// text writes a text as content.
func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// into reads content into a text.
func into(s *string) func(io.Reader) error {
	return func(r io.Reader) error {
		b, err := io.ReadAll(r)
		*s = string(b)
		return err
	}
}

func TestContentIsReadAsItWasWritten(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "state"), Format: format}
	var got string
	if err := f.Read(into(&got)); ReasonOf(err) != Missing || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if err := f.Write(text("content")); err != nil {
		t.Fatal(err)
	}
	if err := f.Read(into(&got)); err != nil || got != "content" {
		t.Errorf("read %q, %v", got, err)
	}
	info, err := os.Stat(f.Path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// What is wrong with a file is named; nothing is read of it beyond the bounds.
func TestUnusableFiles(t *testing.T) {
	good, err := format.Seal(text("content"))
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(good)
	damaged[len(damaged)-1] ^= 1
	long, err := format.Seal(text(strings.Repeat("x", 2000)))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		file   []byte
		reason Reason
	}{
		"empty":             {nil, Version},
		"another title":     {append([]byte("x"), good...), Version},
		"without line end":  {good[:20], Version},
		"damaged":           {damaged, Corrupt},
		"cut":               {good[:len(good)-1], Corrupt},
		"longer than bound": {append(slices.Clone(good), make([]byte, 200)...), Corrupt},
	} {
		t.Run(name, func(t *testing.T) {
			f := File{Path: filepath.Join(t.TempDir(), "state"), Format: format}
			if err := os.WriteFile(f.Path, tc.file, 0o600); err != nil {
				t.Fatal(err)
			}
			var got string
			if err := f.Read(into(&got)); ReasonOf(err) != tc.reason || got != "" {
				t.Errorf("read %q, %v, want the reason %s", got, err, tc.reason)
			}
		})
	}
	var got string
	if err := format.Open(long, into(&got)); ReasonOf(err) != Corrupt || len(got) > 1001 {
		t.Errorf("%d bytes of compressed content are read, %v, want the bound of 1000 as the reason", len(got), err)
	}
	if err := format.Open(good, func(io.Reader) error { return io.ErrUnexpectedEOF }); ReasonOf(err) != Corrupt || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("content that cannot be read: %v", err)
	}
}

// A file that cannot be written stays as it was.
func TestFailedWrites(t *testing.T) {
	folder := t.TempDir()
	f := File{Path: filepath.Join(folder, "state"), Format: Format{Title: "test 1 ", MaxFile: 100, MaxContent: 1000}}
	if err := f.Write(text("content")); err == nil {
		t.Error("a file above the bound is written")
	}
	f.Format = format
	if err := f.Write(func(io.Writer) error { return io.ErrShortWrite }); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v", err)
	}
	if err := os.Mkdir(f.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(text("content")); err == nil {
		t.Error("a folder is replaced")
	}
	if err := f.Read(into(new(string))); ReasonOf(err) != Unreadable {
		t.Errorf("a folder is read: %v", err)
	}
	if names, err := unfinished(f.Path); err != nil || len(names) > 0 {
		t.Errorf("left are %v, %v", names, err)
	}
}

func TestReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	one, other := File{Path: path, Format: format}, File{Path: path, Format: format}
	if one.Replaced() {
		t.Error("there is no file")
	}
	if err := other.Write(text("a")); err != nil {
		t.Fatal(err)
	}
	if !one.Replaced() || other.Replaced() {
		t.Error("the file of another process is not noticed, or the own one is")
	}
	if err := one.Read(into(new(string))); err != nil || one.Replaced() {
		t.Errorf("replaced although it was read, %v", err)
	}
	if err := one.Write(text("b")); err != nil || one.Replaced() || !other.Replaced() {
		t.Errorf("replaced: %v and %v, %v", one.Replaced(), other.Replaced(), err)
	}
}

func TestNothingIsLeft(t *testing.T) {
	folder := t.TempDir()
	path, unfinished, other := filepath.Join(folder, "snapshot"), filepath.Join(folder, ".snapshot.123"), filepath.Join(folder, "other")
	for range 2 { // the second time there is no snapshot
		for _, name := range []string{unfinished, other} {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := Remove(path); err != nil {
			t.Error(err)
		}
		names, err := filepath.Glob(filepath.Join(folder, "*"))
		hidden, _ := filepath.Glob(filepath.Join(folder, ".s*"))
		if err != nil || !slices.Equal(names, []string{other}) || len(hidden) > 0 {
			t.Errorf("left are %v and %v, %v", names, hidden, err)
		}
	}
}

// TestCleanLeavesWhatIsBeingWritten: another agent may be about to rename its file.
func TestCleanLeavesWhatIsBeingWritten(t *testing.T) {
	folder := t.TempDir()
	abandoned, current := filepath.Join(folder, ".snapshot.1"), filepath.Join(folder, ".snapshot.2")
	for _, name := range []string{abandoned, current} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	if err := os.Chtimes(abandoned, now, now.Add(-abandonedAfter-time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := (&File{Path: filepath.Join(folder, "snapshot")}).Clean(now); err != nil {
		t.Error(err)
	}
	if names, err := filepath.Glob(filepath.Join(folder, ".s*")); err != nil || !slices.Equal(names, []string{current}) {
		t.Errorf("left are %v, %v", names, err)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	one, other := File{Path: path}, File{Path: path}
	unlock, err := one.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Lock(); !errors.Is(err, ErrLocked) {
		t.Errorf("got %v while the file is locked", err)
	}
	unlock()
	unlock, err = other.Lock()
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if _, err := (&File{Path: filepath.Join(path, "none")}).Lock(); err == nil {
		t.Error("a folder is locked that does not exist")
	}
}

// TestReadsAndWritesAreCounted: each file counts its own, with the reasons that its content has.
func TestReadsAndWritesAreCounted(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	folder := t.TempDir()
	names := File{Path: filepath.Join(folder, "names"), Format: format, Metrics: NewMetrics(reg, "names", "boot")}
	state := File{Path: filepath.Join(folder, "none", "state"), Format: format, Metrics: NewMetrics(reg, "state")}
	refuse := func(io.Reader) error { return Unusablef("boot", "was written before") }
	_, errLock := state.Lock()
	for _, err := range []error{names.Write(text("content")), names.Read(into(new(string)))} {
		if err != nil {
			t.Error(err)
		}
	}
	for _, err := range []error{names.Read(refuse), state.Read(refuse), state.Write(text("")), errLock} {
		if err == nil {
			t.Error("no error")
		}
	}
	const want = `
		# HELP netpol_saved_writes_total Writes of saved files, with the label file.
		# TYPE netpol_saved_writes_total counter
		netpol_saved_writes_total{file="names",result="error"} 0
		netpol_saved_writes_total{file="names",result="success"} 1
		netpol_saved_writes_total{file="state",result="error"} 2
		netpol_saved_writes_total{file="state",result="success"} 0
	`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "netpol_saved_writes_total"); err != nil {
		t.Error(err)
	}
	for reason, of := range map[Reason]*Metrics{Used: names.Metrics, "boot": names.Metrics, Missing: state.Metrics} {
		if n := testutil.ToFloat64(of.Reads.WithLabelValues(string(reason))); n != 1 {
			t.Errorf("%v reads with the result %s, want 1", n, reason)
		}
	}
	if n, err := testutil.GatherAndCount(reg, "netpol_saved_reads_total"); err != nil || n != 6+5 {
		t.Errorf("%d results of reads are shown, %v", n, err)
	}
}

func FuzzOpen(f *testing.F) {
	good, err := format.Seal(text("content"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(format.Title + "\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		var got string
		if err := format.Open(file, into(&got)); err == nil && int64(len(got)) > format.MaxContent || err != nil && ReasonOf(err) == "" {
			t.Errorf("read %d bytes, %v", len(got), err)
		}
	})
}
