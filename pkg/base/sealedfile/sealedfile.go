// Package sealedfile keeps the state of a program in a file across restarts. It knows how the file
// is replaced, and when it is damaged or belongs to another version. It does not know what is in
// it.
//
// The file is a line with a title and the SHA-256 of the rest, followed by compressed content. It
// is replaced atomically but not synced to disk: a file damaged by a power failure is not used.
package sealedfile

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// Format is the format of a file.
type Format struct {
	// Title begins the file. Its number must change whenever the content's meaning does.
	Title string
	// MaxFile and MaxContent bound the file and its uncompressed content, in bytes.
	MaxFile, MaxContent int64
}

// Reason is why a file is not used.
type Reason string

// The reasons that do not depend on the content.
const (
	Missing    Reason = "missing"
	Unreadable Reason = "unreadable"
	Version    Reason = "version"
	Corrupt    Reason = "corrupt"
)

// Unusable is the error of a file that is not used.
type Unusable struct {
	Reason Reason
	Err    error
}

func (u *Unusable) Error() string { return u.Err.Error() }
func (u *Unusable) Unwrap() error { return u.Err }

// Unusablef returns an Unusable with a text.
func Unusablef(r Reason, format string, args ...any) error {
	return &Unusable{r, fmt.Errorf(format, args...)}
}

// ReasonOf returns the reason in err, "" if there is none.
func ReasonOf(err error) Reason {
	if u := (*Unusable)(nil); errors.As(err, &u) {
		return u.Reason
	}
	return ""
}

// Seal returns a file with the content that write writes.
func (f Format) Seal(write func(io.Writer) error) ([]byte, error) {
	var body bytes.Buffer
	w, _ := gzip.NewWriterLevel(&body, gzip.BestSpeed) // a valid level, so there is no error
	if err := errors.Join(write(w), w.Close()); err != nil {
		return nil, err
	}
	return slices.Concat([]byte(f.Title), []byte(checksum(body.Bytes())), []byte("\n"), body.Bytes()), nil
}

// Open calls read with the content of a file. The error is Unusable, with the reason Corrupt if read
// names none.
func (f Format) Open(file []byte, read func(io.Reader) error) error {
	head, body, ok := bytes.Cut(file, []byte("\n"))
	sum, isVersion := bytes.CutPrefix(head, []byte(f.Title))
	if !ok || !isVersion {
		return Unusablef(Version, "does not begin with %q: another version or another program has written it", f.Title)
	}
	if string(sum) != checksum(body) {
		return Unusablef(Corrupt, "is damaged: the checksum is wrong")
	}
	r, err := gzip.NewReader(bytes.NewReader(body))
	content := &io.LimitedReader{R: r, N: f.MaxContent + 1}
	if err == nil {
		err = read(content)
	}
	if err == nil && content.N == 0 { // what was read may end between two values
		err = fmt.Errorf("it has more than %d bytes", f.MaxContent)
	}
	if err != nil && ReasonOf(err) == "" {
		return Unusablef(Corrupt, "cannot be read: %w", err)
	}
	return err
}

func checksum(body []byte) string { return fmt.Sprintf("%x", sha256.Sum256(body)) }

// File is a file on disk. Its methods must not be called concurrently.
type File struct {
	Path    string // its folder must exist
	Format  Format
	Metrics *Metrics // nil counts nothing

	last fs.FileInfo // of the file last read or written, nil if there was none
}

// Read calls read with the content of the file. The error is Unusable, and wraps fs.ErrNotExist if
// there is no file.
func (f *File) Read(read func(io.Reader) error) error {
	content, err := f.bytes()
	if err == nil {
		err = f.Format.Open(content, read)
	}
	f.Metrics.read(err)
	return err
}

// bytes reads the file unless it is too long.
func (f *File) bytes() ([]byte, error) {
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Unusable{Missing, err}
	} else if err != nil {
		return nil, &Unusable{Unreadable, err}
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, f.Format.MaxFile+1))
	if err == nil {
		f.last, err = file.Stat()
	}
	if err != nil {
		return nil, &Unusable{Unreadable, err}
	}
	if int64(len(content)) > f.Format.MaxFile {
		return nil, Unusablef(Corrupt, "has more than %d bytes", f.Format.MaxFile)
	}
	return content, nil
}

// Write replaces the file by one with the content that write writes.
func (f *File) Write(write func(io.Writer) error) error {
	err := f.replace(write)
	f.Metrics.wrote(err)
	return err
}

func (f *File) replace(write func(io.Writer) error) error {
	content, err := f.Format.Seal(write)
	if err != nil {
		return err
	}
	if int64(len(content)) > f.Format.MaxFile {
		return fmt.Errorf("%d bytes are more than %d", len(content), f.Format.MaxFile)
	}
	// Two agents may write at the same time during a handover.
	file, err := os.CreateTemp(filepath.Dir(f.Path), temporary(f.Path)) // with mode 0600
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	info, errStat := file.Stat()
	if err = errors.Join(err, errStat, file.Close()); err == nil {
		err = os.Rename(file.Name(), f.Path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	f.last = info
	return nil
}

// Replaced reports whether another process has written the file since this one last read or wrote
// it.
func (f *File) Replaced() bool {
	file, err := os.Stat(f.Path)
	switch {
	case err != nil:
		return false
	case f.last == nil:
		return true
	}
	// A file system may reuse the inode number of a deleted file.
	return !os.SameFile(f.last, file) || !f.last.ModTime().Equal(file.ModTime())
}

// ErrLocked is the error of Lock while another process has the lock.
var ErrLocked = errors.New("another process is updating the file")

// Lock locks the folder of the file, so that what was read before Write is what Write replaces. It
// does not wait. The kernel ends the lock of a process that ends. An error other than ErrLocked
// counts as one of writing.
func (f *File) Lock() (unlock func(), err error) {
	if unlock, err = f.lock(); err != nil && !errors.Is(err, ErrLocked) {
		f.Metrics.wrote(err)
	}
	return unlock, err
}

func (f *File) lock() (unlock func(), err error) {
	folder, err := os.Open(filepath.Dir(f.Path))
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	return func() { folder.Close() }, nil
}

// temporary returns the name pattern of files that are being written.
func temporary(path string) string { return "." + filepath.Base(path) + ".*" }

// abandonedAfter is the age of a temporary file whose writer has certainly ended: writing takes
// less than a second.
const abandonedAfter = time.Minute

// Clean removes temporary files of killed processes. It leaves files alone that another process may
// be writing.
func (f *File) Clean(now time.Time) error {
	names, err := unfinished(f.Path)
	for _, name := range names {
		if file, errStat := os.Stat(name); errStat == nil && now.Sub(file.ModTime()) > abandonedAfter {
			err = errors.Join(err, remove(name))
		}
	}
	return err
}

// Remove removes the file at path and its temporary files.
func Remove(path string) error {
	names, err := unfinished(path)
	for _, name := range append(names, path) {
		err = errors.Join(err, remove(name))
	}
	return err
}

// unfinished returns the temporary files of path.
func unfinished(path string) ([]string, error) {
	return filepath.Glob(filepath.Join(filepath.Dir(path), temporary(path)))
}

// remove removes a file unless it is gone.
func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
