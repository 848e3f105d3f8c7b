package manifests

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// file is the last state of a file.
type file struct {
	sum       [sha256.Size]byte // of the last read
	err       error             // of the last content
	unread    bool              // it could not be read since
	valid     bool              // it has been valid
	manifests []manifest        // its last valid content
}

// use updates the tables. It reports each fault once while it lasts.
func (s *Source) use(ctx context.Context, t tree) {
	s.remember(ctx, t)
	faults := map[string]fault{}
	for name, f := range s.files {
		if f.err != nil {
			faults[name] = manifestyaml.AsFault(f.err)
		}
	}
	for name, err := range t.unread {
		faults[name] = manifestyaml.AsFault(err)
	}
	if len(s.files) == 0 && len(faults) == 0 && !s.isReady() {
		faults["."] = fault{Err: errors.New("no manifests: the folder may not be mounted")}
	}
	merged := s.merge(faults)
	complete := s.isReady() || len(faults) == 0
	if complete {
		s.serve(merged)
	}
	s.note(ctx, faults)
	if !complete {
		s.incomplete(sorted[*corev1.Pod](merged[compile.KindPod]), sorted[*corev1.Node](merged[compile.KindNode]))
	}
}

// serve replaces the content of the tables. The first content makes the Source ready.
func (s *Source) serve(merged map[*compile.Kind]map[string]object) {
	for _, k := range kinds {
		s.tables[k].replace(merged[k])
	}
	if !s.isReady() {
		close(s.ready)
	}
}

func (s *Source) isReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// remember records what has been read: the objects of valid files, and only the fault of
// invalid ones. It forgets removed files, but keeps files that may exist and cannot be read.
func (s *Source) remember(ctx context.Context, t tree) {
	for name, f := range s.files {
		_, read := t.files[name]
		f.unread = !read
		if f.unread && !unreadable(name, t.unread) {
			delete(s.files, name)
		}
	}
	for name, data := range t.files {
		sum := sha256.Sum256(data)
		f, known := s.files[name]
		if known && f.sum == sum {
			continue
		}
		if !known {
			f = &file{}
			s.files[name] = f
		}
		f.sum = sum
		c, err := parse(data)
		f.err = err
		if err != nil {
			continue
		}
		f.valid, f.manifests = true, c.manifests
		if len(c.ignored) > 0 {
			klog.FromContext(ctx).V(2).Info("Manifests of other kinds ignored", "file", name, "kinds", slices.Compact(slices.Sorted(slices.Values(c.ignored))))
		}
	}
}

// unreadable reports whether name, or a folder above it, could not be read.
func unreadable(name string, faults map[string]error) bool {
	for at := range faults {
		if at == "." || at == name || strings.HasPrefix(name, at+"/") {
			return true
		}
	}
	return false
}

// merge returns the objects of all files by kind and by namespace and name. If several files
// have an object, the first file by path wins and faults are added for the other files.
func (s *Source) merge(faults map[string]fault) map[*compile.Kind]map[string]object {
	merged := map[*compile.Kind]map[string]object{}
	type owner struct {
		file string
		manifest
	}
	owners := map[string]owner{}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		for _, m := range s.files[name].manifests {
			key := m.key()
			if first, taken := owners[key]; taken {
				if _, worse := faults[name]; !worse {
					faults[name] = fault{Line: m.line, Err: m.duplicate(first.manifest, "in "+first.file)}
				}
				continue
			}
			owners[key] = owner{name, m}
			if merged[m.kind] == nil {
				merged[m.kind] = map[string]object{}
			}
			merged[m.kind][key] = m.object
		}
	}
	return merged
}

// note publishes the faults.
func (s *Source) note(ctx context.Context, faults map[string]fault) {
	var lack error
	if !s.isReady() {
		lack = fmt.Errorf("manifests in %s: %w", s.dir, joined(faults))
	}
	s.mu.Lock()
	s.lack = lack
	s.mu.Unlock()
	s.report(ctx, faults)
}

// report logs new faults and faults that have ended.
func (s *Source) report(ctx context.Context, faults map[string]fault) {
	logger := klog.FromContext(ctx)
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		f := faults[name]
		if before, known := s.faults[name]; known && before.Error() == f.Error() {
			continue
		}
		logger.Error(f.Err, "Invalid manifest; "+s.consequence(name), "file", name, "line", f.Line)
	}
	for _, name := range slices.Sorted(maps.Keys(s.faults)) {
		if _, still := faults[name]; !still {
			logger.Info("Manifest valid again, or removed", "file", name)
		}
	}
	s.faults = faults
	s.metrics.errors.Set(float64(len(faults)))
}

// consequence says what holds while the file or folder of this name is invalid.
func (s *Source) consequence(name string) string {
	f := s.files[name]
	switch {
	case !s.isReady():
		return "no policy is enforced, and new connections of pods wait, until all files have been valid at once"
	case f != nil && f.valid && f.err == nil && !f.unread:
		return "the object that an earlier file has is not taken from this one"
	case s.holds(name):
		return "its last valid content stays in force"
	}
	return "nothing in it is in force"
}

// holds reports whether a file of this name, or one below a folder of this name, has been valid.
func (s *Source) holds(name string) bool {
	for at, f := range s.files {
		if f.valid && (name == "." || at == name || strings.HasPrefix(at, name+"/")) {
			return true
		}
	}
	return false
}

// maxNamed is how many invalid files an error names.
const maxNamed = 10

// joined returns the faults as one error that names files and lines.
func joined(faults map[string]fault) error {
	var errs []error
	for i, name := range slices.Sorted(maps.Keys(faults)) {
		if i == maxNamed {
			errs = append(errs, fmt.Errorf("%d more files", len(faults)-maxNamed))
			break
		}
		errs = append(errs, at(name, faults[name]))
	}
	return errors.Join(errs...)
}

// at returns a fault as an error with the name of the file.
func at(name string, f fault) error {
	if f.Line > 0 {
		return fmt.Errorf("%s:%d: %w", name, f.Line, f.Err)
	}
	return fmt.Errorf("%s: %w", name, f.Err)
}

func sorted[P object](objects map[string]object) []P {
	var typed []P
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		typed = append(typed, objects[key].(P))
	}
	return typed
}
