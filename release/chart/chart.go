// Package chart renders the Helm chart as Helm does, without a cluster.
package chart

import (
	"fmt"
	"path"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

// Folder is where the chart is in the repository.
const Folder = "charts/kube-network-policies"

// Namespace is where the install files install.
const Namespace = "kube-system"

// The templates of the chart that have objects.
const (
	Agent       = "agent.yaml"
	Writer      = "status-writer.yaml"
	WriterGuard = "writer-guard.yaml"
	Readiness   = "readiness.yaml"
	Warnings    = "warnings.yaml"
	Monitoring  = "monitoring.yaml"
	Uninstall   = "uninstall.yaml"
)

// Version is the version of Kubernetes that is rendered for.
const Version = "v1.36.0"

// Values are those of a user, by name.
type Values = map[string]any

// Load reads the chart of a repository.
func Load(repository string) (*chart.Chart, error) {
	return loader.Load(path.Join(repository, Folder))
}

// Render returns what each template makes of values for a version of Kubernetes, by its
// name: YAML documents with their comments, or nothing. It fails for values that the
// schema refuses.
func Render(c *chart.Chart, values Values, version string) (map[string]string, error) {
	capabilities := common.DefaultCapabilities.Copy()
	kubernetes, err := common.ParseKubeVersion(version)
	if err != nil {
		return nil, err
	}
	capabilities.KubeVersion = *kubernetes
	release := common.ReleaseOptions{Name: c.Name(), Namespace: Namespace, IsInstall: true, Revision: 1}
	all, err := util.ToRenderValues(c, values, release, capabilities)
	if err != nil {
		return nil, err
	}
	rendered, err := engine.Render(c, all)
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	out := map[string]string{}
	for name, text := range rendered {
		if text = strings.TrimSpace(text); text != "" {
			text += "\n"
		}
		out[path.Base(name)] = text
	}
	return out, nil
}

// Documents returns all objects of Render in one text.
func Documents(c *chart.Chart, values Values, version string) (string, error) {
	rendered, err := Render(c, values, version)
	if err != nil {
		return "", err
	}
	var out []string
	for _, template := range []string{Agent, Writer, WriterGuard, Readiness, Warnings, Monitoring, Uninstall} {
		if text := strings.TrimPrefix(rendered[template], "---\n"); text != "" {
			out = append(out, text)
		}
	}
	return documents(out...), nil
}

// documents joins YAML files.
func documents(files ...string) string { return strings.Join(files, "---\n") }
