// Package helmchart renders Helm charts in process, as "helm template" does: from local files
// alone, without a cluster, and without running a program. It knows no kinds of objects.
package helmchart

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
)

// Values are what the user sets of a chart's values.
type Values struct {
	Files []string // of values; later ones come first
	Set   []string // settings such as "a.b=c", which come before those of files
}

// Template is what a template renders to.
type Template struct {
	Name string // the path of the template in the chart's folder
	Text string // YAML documents
}

// IsFile reports whether a file of this name marks the folder of a chart.
func IsFile(name string) bool { return name == chartutil.ChartfileName }

// IsArchive reports whether a file is named like a packed chart.
func IsArchive(name string) bool { return strings.HasSuffix(name, ".tgz") }

// Render renders the chart at path, a folder or an archive, for a release in a namespace that
// has the name of the chart. The templates are ordered by name, without notes, tests, and what
// renders to nothing. Values are not compared with the chart's schema, which may refer to
// other hosts.
func Render(path, namespace string, values Values) ([]Template, error) {
	c, err := loader.Load(path)
	if err != nil {
		return nil, err
	}
	if err := complete(c); err != nil {
		return nil, err
	}
	set, err := values.merged()
	if err != nil {
		return nil, err
	}
	if err := chartutil.ProcessDependencies(c, set); err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: c.Name(), Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValuesWithSchemaValidation(c, set, release, nil, true)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	var templates []Template
	for _, name := range slices.Sorted(maps.Keys(rendered)) {
		if text := rendered[name]; isManifest(name) && strings.TrimSpace(text) != "" {
			below := strings.TrimPrefix(name, c.Name()+"/")
			templates = append(templates, Template{filepath.FromSlash(below), text})
		}
	}
	return templates, nil
}

// isManifest reports whether a template is one of manifests that an installation has.
func isManifest(name string) bool {
	return !strings.HasPrefix(path.Base(name), "_") && path.Ext(name) != ".txt" && !strings.Contains(name, "/templates/tests/")
}

// complete returns an error if the chart lacks charts that it depends on: they would have to be
// downloaded.
func complete(c *chart.Chart) error {
	var missing []string
	for _, d := range c.Metadata.Dependencies {
		if !slices.ContainsFunc(c.Dependencies(), func(c *chart.Chart) bool { return c.Name() == d.Name }) {
			missing = append(missing, d.Name)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("charts/ lacks %s, and nothing is downloaded: run helm dependency build", strings.Join(missing, ", "))
}

// merged returns the values that the user sets.
func (v *Values) merged() (map[string]any, error) {
	all := map[string]any{}
	for _, name := range v.Files {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		values, err := loader.LoadValues(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, &fs.PathError{Op: "read values", Path: name, Err: err}
		}
		all = loader.MergeMaps(all, values)
	}
	for _, setting := range v.Set {
		if err := strvals.ParseInto(setting, all); err != nil {
			return nil, fmt.Errorf("setting %q: %w", setting, err)
		}
	}
	return all, nil
}
