package manifests

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

// Stdin is the path that means standard input.
const Stdin = "-"

// Objects are the objects of manifests, ordered by namespace and name.
type Objects struct {
	Namespaces []*corev1.Namespace
	Pods       []*corev1.Pod
	Nodes      []*corev1.Node
	CIDRGroups []*proposed.CIDRGroup
	Policies   []compile.Object // kind by kind, in the order of compile.Kinds
}

// Read reads files, and directories by the rules of a Source, once. A file that is listed in
// paths may have any name. Invalid files and objects in two files are errors with name and
// line, while a Source would keep the last valid content. All errors are joined.
func Read(paths []string, stdin io.Reader) (Objects, error) {
	files := map[string][]byte{}
	var errs []error
	for _, path := range paths {
		errs = append(errs, collect(files, path, stdin))
	}
	objects, faults := gather(files)
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		errs = append(errs, at(name, faults[name]))
	}
	return objects, errors.Join(errs...)
}

// collect adds the files at path to files.
func collect(files map[string][]byte, path string, stdin io.Reader) error {
	if path == Stdin {
		data, err := io.ReadAll(stdin)
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		files[path] = data
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		data, err := readFile(path, info)
		if err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		files[path] = data
		return nil
	}
	t := walk(path, func(string) error { return nil })
	for name, data := range t.files {
		files[filepath.Join(path, name)] = data
	}
	var errs []error
	for name, err := range t.unread {
		errs = append(errs, fmt.Errorf("read %s: %w", filepath.Join(path, name), err))
	}
	return errors.Join(errs...)
}

// gather parses files and returns their objects and faults.
func gather(files map[string][]byte) (Objects, map[string]fault) {
	s := Source{files: map[string]*file{}}
	faults := map[string]fault{}
	for name, data := range files {
		c, err := parse(data)
		if err != nil {
			faults[name] = manifestyaml.AsFault(err)
		}
		s.files[name] = &file{manifests: c.manifests}
	}
	merged := s.merge(faults)
	objects := Objects{
		Namespaces: sorted[*corev1.Namespace](merged[compile.KindNamespace]),
		Pods:       sorted[*corev1.Pod](merged[compile.KindPod]),
		Nodes:      sorted[*corev1.Node](merged[compile.KindNode]),
		CIDRGroups: sorted[*proposed.CIDRGroup](merged[compile.KindCIDRGroup]),
	}
	for _, k := range compile.Kinds {
		objects.Policies = append(objects.Policies, sorted[compile.Object](merged[k])...)
	}
	return objects, faults
}

func sorted[P object](objects map[string]object) []P {
	var typed []P
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		typed = append(typed, objects[key].(P))
	}
	return typed
}
