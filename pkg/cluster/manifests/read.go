package manifests

import (
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// file is the last state of a file.
type file struct {
	sum       [sha256.Size]byte // of the last read
	err       error             // of the last read
	manifests []manifest        // its last valid content
}

// read updates the tables from the directory. It reports each fault once while it lasts.
func (s *Source) read(ctx context.Context, watch func(folder string) error) {
	t := readTree(s.dir, watch)
	s.remember(ctx, t)
	faults := map[string]fault{}
	for name, f := range s.files {
		if f.err != nil {
			faults[name] = manifestyaml.AsFault(f.err)
		}
	}
	for _, errs := range []map[string]error{t.unwatched, t.unread} {
		for name, err := range errs {
			faults[name] = manifestyaml.AsFault(err)
		}
	}
	merged := s.merge(faults)
	s.report(ctx, faults)
	if _, unread := t.unread["."]; unread && !s.isReady() {
		return // there is no earlier content to keep
	}
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
	for name := range s.files {
		_, read := t.files[name]
		if !read && !unreadable(name, t.unread) {
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
		f.manifests = c.manifests
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

// report logs new faults and faults that have ended.
func (s *Source) report(ctx context.Context, faults map[string]fault) {
	logger := klog.FromContext(ctx)
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		f := faults[name]
		if before, known := s.faults[name]; known && before.Error() == f.Error() {
			continue
		}
		logger.Error(f.Err, "Invalid manifest; its last valid content stays in force", "file", name, "line", f.Line)
	}
	for _, name := range slices.Sorted(maps.Keys(s.faults)) {
		if _, still := faults[name]; !still {
			logger.Info("Manifest valid again", "file", name)
		}
	}
	s.faults = faults
	s.metrics.errors.Set(float64(len(faults)))
}
