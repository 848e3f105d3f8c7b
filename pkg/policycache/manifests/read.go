package manifests

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/manifestyaml"
)

// file is what the Source remembers of a file.
type file struct {
	sum       [sha256.Size]byte // of what was read last
	err       error             // of what was read last
	manifests []manifest        // its last valid content
}

// read brings the tables up to date with the directory and reports what is
// wrong with it, once for as long as it lasts.
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
		return // there is nothing yet to stand in for it
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

// remember takes over what has been read: right files as they are, wrong ones
// with their fault only. Files that are gone are forgotten, those that may be
// there but cannot be read are not.
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

// unreadable reports whether name, or a folder that it is in, is at fault.
func unreadable(name string, faults map[string]error) bool {
	for at := range faults {
		if at == "." || at == name || strings.HasPrefix(name, at+"/") {
			return true
		}
	}
	return false
}

// merge returns the objects of all files by kind and by namespace and name. Of
// an object in several files, the first file by path has it, and a fault is
// added for the others.
func (s *Source) merge(faults map[string]fault) map[*compile.Kind]map[string]object {
	merged := map[*compile.Kind]map[string]object{}
	owners := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		for _, m := range s.files[name].manifests {
			key := m.key()
			if owner, taken := owners[key]; taken {
				if _, worse := faults[name]; !worse {
					faults[name] = fault{Line: m.line, Err: fmt.Errorf("%s is already in %s", key, owner)}
				}
				continue
			}
			owners[key] = name
			if merged[m.kind] == nil {
				merged[m.kind] = map[string]object{}
			}
			merged[m.kind][key] = m.object
		}
	}
	return merged
}

// report logs the faults that are new and those that are over.
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
