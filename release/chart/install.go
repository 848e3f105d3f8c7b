package chart

import (
	"fmt"
	"strings"

	chart "helm.sh/helm/v4/pkg/chart/v2"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
)

const generated = `# Generated from charts/kube-network-policies by make manifests. Change it there.
`

const installHeader = `# The agent on every node, and one status writer. The image has to be known to the nodes
# (docs/install/README.md). On Kubernetes 1.30 and later apply install-writer-guard.yaml too.
` + generated

const adminHeader = `# install.yaml with all kinds of administrators' policies. Their definitions may be
# installed before or later, or some of them never.
#
` + installHeader

const guardHeader = `# For the status writer of install.yaml and install-anp.yaml. A file of its own, because older
# API servers refuse the whole of a file with a kind that they do not know.
` + generated

const warningsHeader = `# Beside install.yaml or install-anp.yaml. A file of its own, because older API servers refuse the
# whole of a file with a kind that they do not know.
` + generated

const readinessHeader = `# For pods with a readiness gate (docs/status.md), on Kubernetes 1.30 and later. The status writer
# needs the flag --pod-readiness, too.
` + generated

// Files returns the files for users of kubectl and of kustomize, by their paths in the
// repository: the chart, rendered with its defaults or with all kinds of policy.
func Files(c *chart.Chart) (map[string]string, error) {
	plain, err := Render(c, nil, Version)
	if err != nil {
		return nil, err
	}
	admin, err := Render(c, Values{"adminPolicies": true}, Version)
	if err != nil {
		return nil, err
	}
	ready, err := Render(c, Values{"statusWriter": Values{"flags": Values{"pod-readiness": true}}}, Version)
	if err != nil {
		return nil, err
	}
	readiness := readinessHeader + ready[Readiness]
	install := installHeader + documents(plain[Agent], plain[Writer])
	guard := guardHeader + plain[WriterGuard]
	warnings := warningsHeader + admin[Warnings]
	return map[string]string{
		"install.yaml":                         install,
		"install-anp.yaml":                     adminHeader + documents(admin[Agent], admin[Writer]),
		"install-writer-guard.yaml":            guard,
		"kustomize/base/install.yaml":          install,
		"install-warnings.yaml":                warnings,
		"install-readiness.yaml":               readiness,
		"kustomize/readiness/rights.yaml":      readiness,
		"kustomize/writer-guard/validate.yaml": guard,
		"kustomize/warnings/validate.yaml":     warnings,
	}, nil
}

// Image returns the image that c installs by default.
func Image(c *chart.Chart) string {
	return fmt.Sprintf("%s:%s", c.Values["image"].(map[string]any)["repository"], c.Metadata.AppVersion)
}

// SetRelease makes c the chart of a release: of this version, vX.Y.Z, with the published
// image.
func SetRelease(c *chart.Chart, version, image string) error {
	c.Metadata.Version, c.Metadata.AppVersion = strings.TrimPrefix(version, "v"), version
	c.Values["image"].(map[string]any)["repository"] = image
	for _, f := range c.Raw {
		if f.Name != chartutil.ValuesfileName {
			continue
		}
		const before = "\n  repository: kube-network-policies\n"
		if strings.Count(string(f.Data), before) != 1 {
			return fmt.Errorf("%s does not name the image once", f.Name)
		}
		f.Data = []byte(strings.Replace(string(f.Data), before, "\n  repository: "+image+"\n", 1))
	}
	return nil
}
