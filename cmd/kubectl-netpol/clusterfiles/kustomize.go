package clusterfiles

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/manifestyaml"
)

// originAnnotation is where kustomize records the file of an object.
const originAnnotation = "config.kubernetes.io/origin"

func isKustomization(name string) bool {
	return slices.Contains(konfig.RecognizedKustomizationFileNames(), name)
}

// build returns the objects of the kustomization in a folder, each as a file of its own. It adds the
// real paths of the files that kustomize reads to read. It reads only local files and starts no
// programs. left says which remote parts are left out.
func build(folder string, read map[string]bool) (files []file, left []error, err error) {
	real, err := realPath(folder)
	if err != nil {
		return nil, nil, err
	}
	disk := &localDisk{FileSystem: filesys.MakeFsOnDisk(), root: real, shown: folder, read: read}
	built, err := run(disk, real)
	switch {
	case disk.refused != nil: // kustomize may have treated the refusal as a missing file
		return nil, nil, disk.refused
	case err != nil && disk.left != nil: // for want of what is left out
		return nil, nil, errors.Join(disk.left...)
	case err != nil:
		return nil, nil, fmt.Errorf("kustomize %s: %w", folder, err)
	}
	for _, r := range built.Resources() {
		f, err := builtFile(folder, r)
		if err != nil {
			return nil, nil, fmt.Errorf("kustomize %s: %w", folder, err)
		}
		files = append(files, f)
	}
	return files, disk.left, nil
}

// realPath returns the absolute path without links.
func realPath(path string) (string, error) {
	real, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(real)
}

// run calls kustomize and turns its panics, which some inputs cause, into errors. What it prints of
// deprecated fields, again for each kustomization, is not about policies.
func run(disk filesys.FileSystem, folder string) (built resmap.ResMap, err error) {
	if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
		stderr := os.Stderr
		os.Stderr = null
		defer func() { os.Stderr = stderr; null.Close() }()
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, folder)
}

// builtFile returns an object built by kustomize as a file.
func builtFile(folder string, r *resource.Resource) (file, error) {
	f := file{name: folder, built: true}
	if origin, err := r.GetOrigin(); err == nil && origin != nil && origin.Path != "" {
		f.name = filepath.Join(folder, origin.Path)
	}
	annotations := r.GetAnnotations()
	delete(annotations, originAnnotation)
	if err := r.SetAnnotations(annotations); err != nil {
		return file{}, err
	}
	data, err := r.AsYAML()
	f.data = data
	return f, err
}

// localDisk is the file system that kustomize sees. It leaves remote resources out of
// kustomizations, and refuses one that refers to other remote files or to programs before kustomize
// reads it.
type localDisk struct {
	filesys.FileSystem
	root, shown string // the folder that is built, and its name as the user gave it
	refused     error
	left        []error         // about what is left out
	read        map[string]bool // what was read
}

func (d *localDisk) ReadFile(path string) ([]byte, error) {
	data, err := d.FileSystem.ReadFile(path)
	if real, realErr := realPath(path); err == nil && realErr == nil {
		d.read[real] = true
	}
	if err != nil || !isKustomization(filepath.Base(path)) {
		return data, err
	}
	line, rest, err := refuseKustomization(data)
	if err != nil {
		at := Position{path, line}
		if rel, err := filepath.Rel(d.root, path); err == nil {
			at.File = filepath.Join(d.shown, rel)
		}
		err = fmt.Errorf("%s: %w", at, err)
		if !rest {
			d.refused = errors.Join(d.refused, err)
			return nil, d.refused
		}
		d.left = append(d.left, &tolerable{err, "left out"})
		if data, err = withoutRemote(data); err != nil {
			return nil, err
		}
	}
	if filepath.Dir(path) == d.root {
		return noteOrigins(data)
	}
	return data, nil
}

// withoutRemote returns a kustomization without its remote resources and components.
func withoutRemote(data []byte) ([]byte, error) {
	var k map[string]any
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil, err
	}
	for name, value := range k {
		list, isList := value.([]any)
		if isList && slices.Contains([]string{"resources", "components", "bases"}, strings.ToLower(name)) {
			k[name] = slices.DeleteFunc(list, func(item any) bool {
				path, isText := item.(string)
				return isText && isRemote(path)
			})
		}
	}
	return yaml.Marshal(k)
}

// noteOrigins makes a kustomization record the files of its objects. It switches off the
// other build metadata: that label contains the version of this program.
func noteOrigins(data []byte) ([]byte, error) {
	var k map[string]any
	if err := yaml.Unmarshal(data, &k); err != nil {
		return nil, err
	}
	if k == nil { // an empty file, which kustomize refuses
		return data, nil
	}
	k["buildMetadata"] = []string{types.OriginAnnotations}
	return yaml.Marshal(k)
}

// parseKustomization reads a kustomization as kustomize does.
func parseKustomization(data []byte) (*types.Kustomization, error) {
	k := &types.Kustomization{}
	if err := k.Unmarshal(data); err != nil {
		return nil, err
	}
	k.FixKustomization()
	return k, nil
}

// refuseKustomization reports what a kustomization needs beyond local files, the first line with it,
// 0 if that is not known, and whether the rest can be read without.
func refuseKustomization(data []byte) (line int, rest bool, err error) {
	k, err := parseKustomization(data)
	if err != nil {
		return 0, false, err
	}
	for _, field := range []struct {
		name string
		used bool
	}{
		{"helmCharts", len(k.HelmCharts)+len(k.HelmChartInflationGenerator) > 0},
		{"generators", len(k.Generators) > 0},
		{"transformers", len(k.Transformers) > 0},
		{"validators", len(k.Validators) > 0},
	} {
		if field.used {
			return lineWith(data, field.name), false, fmt.Errorf("%s: only local files are read, and no programs are started; give what kustomize build prints instead: kustomize build ... | kubectl netpol ... -f -", field.name)
		}
	}
	paths := pathsOf(k)
	var remote []string
	rest = true
	for _, field := range slices.Sorted(maps.Keys(paths)) {
		for _, path := range paths[field] {
			if isRemote(path) {
				rest = rest && (field == "resources" || field == "components")
				remote = append(remote, fmt.Sprintf("%s: %q", field, path))
				line = cmp.Or(line, lineWith(data, path))
			}
		}
	}
	if remote == nil {
		return 0, true, nil
	}
	is := "is not a local path"
	if len(remote) > 1 {
		is = "are not local paths"
	}
	return line, rest, fmt.Errorf("%s %s, and nothing is downloaded; vendor that with kustomize localize, or give what kustomize build prints: kustomize build ... | kubectl netpol ... -f -", strings.Join(remote, ", "), is)
}

// lineWith returns the first line that has a text outside of comments, 0 if none has.
func lineWith(data []byte, text string) int {
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		if strings.Contains(line, text) && !strings.HasPrefix(strings.TrimSpace(line), "#") {
			return n
		}
	}
	return 0
}

// pathsOf returns all paths in a kustomization, by field.
func pathsOf(k *types.Kustomization) map[string][]string {
	paths := map[string][]string{
		"resources": k.Resources, "components": k.Components, "crds": k.Crds, "configurations": k.Configurations,
		"openapi": {k.OpenAPI["path"]},
	}
	add := func(field string, path ...string) { paths[field] = append(paths[field], path...) }
	//lint:ignore SA1019 people have it, and kustomize reads it
	for _, p := range k.PatchesStrategicMerge {
		if !strings.Contains(string(p), "\n") { // a path; a text of several lines is an inline patch
			add("patchesStrategicMerge", string(p))
		}
	}
	//lint:ignore SA1019 people have it, and kustomize reads it
	for _, p := range slices.Concat(k.Patches, k.PatchesJson6902) {
		add("patches", p.Path)
	}
	for _, r := range k.Replacements {
		add("replacements", r.Path)
	}
	sources := func(field string, s types.KvPairSources) {
		add(field, s.EnvSources...)
		add(field, s.EnvSource)
		for _, f := range s.FileSources {
			_, path, named := strings.Cut(f, "=") // the form KEY=PATH
			if !named {
				path = f
			}
			add(field, path)
		}
	}
	for _, g := range k.ConfigMapGenerator {
		sources("configMapGenerator", g.KvPairSources)
	}
	for _, g := range k.SecretGenerator {
		sources("secretGenerator", g.KvPairSources)
	}
	return paths
}

// isRemote reports whether kustomize might treat a path as remote.
func isRemote(path string) bool {
	path = strings.ToLower(path)
	host, _, _ := strings.Cut(path, "/")
	for _, prefix := range []string{"http:", "https:", "git::", "github.com/", "github.com:"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return strings.Contains(path, "://") || strings.Contains(host, "@")
}

// roots returns the kustomizations that no other kustomization refers to.
func roots(folders []string) []string {
	referred := map[string]bool{}
	component := map[string]bool{}
	for _, folder := range folders {
		for _, name := range konfig.RecognizedKustomizationFileNames() {
			data, err := filesys.MakeFsOnDisk().ReadFile(filepath.Join(folder, name))
			if err != nil {
				continue // the same folder under another name
			}
			k, err := parseKustomization(data)
			if err != nil {
				continue // building it reports the fault
			}
			component[folder] = k.Kind == types.ComponentKind
			for _, path := range slices.Concat(k.Resources, k.Components) {
				referred[filepath.Join(folder, path)] = true
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(folders), func(f string) bool { return referred[filepath.Clean(f)] || component[f] })
}

// origins are the documents in the files that kustomize has read, by file.
type origins map[string][]named

// named is a document and the name of its object.
type named struct {
	doc        *manifestyaml.Document
	kind, name string
}

func nameOf(d *manifestyaml.Document) named {
	fields, _ := d.Map() // a document that is not an object has no name
	o := unstructured.Unstructured{Object: fields}
	return named{d, o.GetKind(), o.GetName()}
}

// find returns the document in file from which kustomize made d: it has the same kind, and
// the longest name that is part of the name of d. It returns nil if there is none.
func (o origins) find(file string, d *manifestyaml.Document) *manifestyaml.Document {
	if _, known := o[file]; !known {
		o[file] = nil
		data, _ := os.ReadFile(file) // kustomize has read it; reading a folder fails and gives no documents
		for d, err := range manifestyaml.Documents(data) {
			if err == nil {
				o[file] = append(o[file], nameOf(d))
			}
		}
	}
	built, found := nameOf(d), named{}
	for _, n := range o[file] {
		if n.kind == built.kind && strings.Contains(built.name, n.name) && (found.doc == nil || len(n.name) > len(found.name)) {
			found = n
		}
	}
	return found.doc
}
