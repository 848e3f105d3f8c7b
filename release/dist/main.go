// dist makes the files of a release that need no registry: the archives of kubectl-netpol
// with a manifest for krew, agent and status writer for each architecture, the package of the Helm chart,
// the install files, SBOMs, the section of the changelog, and the checksums of all. The
// same sources make the same files.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"

	"sigs.k8s.io/kube-network-policies/release/chart"
)

// A platform is one that a program is built for.
type platform struct{ os, arch string }

// agents are the platforms of the image. Plugins has those of kubectl-netpol.
var (
	agents  = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"linux", "ppc64le"}, {"linux", "s390x"}}
	plugins = append([]platform{{"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}}, agents...)
)

// release is what is made, and where.
type release struct {
	version    string // vX.Y.Z
	image      string // without tag
	project    string // the page of the repository
	ldflags    string
	repository string
	folder     string
}

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "`vX.Y.Z`")
	flag.StringVar(&r.image, "image", "", "the `NAME` of the published image, without a tag")
	flag.StringVar(&r.project, "project", "", "the `URL` of the repository's page; releases are below it")
	flag.StringVar(&r.ldflags, "ldflags", "", "`FLAGS` of the linker, in addition")
	flag.StringVar(&r.repository, "repository", "..", "the `FOLDER` of the repository")
	flag.StringVar(&r.folder, "into", "../bin/release", "the `FOLDER` to write to; it must not exist")
	unreleased := flag.Bool("unreleased", false, "take the section Unreleased of the changelog if the version has none")
	flag.Parse()
	if err := r.run(*unreleased); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func (r release) run(unreleased bool) error {
	if !versions.MatchString(r.version) {
		return fmt.Errorf("-version=%s: must be vX.Y.Z", r.version)
	}
	if err := os.MkdirAll(filepath.Dir(r.folder), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(r.folder, 0o755); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return r.changelog(unreleased) }, r.plugins, r.agents, r.chart, r.manifests, r.checksums,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// path returns the path of a file of the release.
func (r release) path(name string) string { return filepath.Join(r.folder, name) }

func (r release) changelog(unreleased bool) error {
	text, err := os.ReadFile(filepath.Join(r.repository, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	section, err := changes(string(text), strings.TrimPrefix(r.version, "v"))
	if err != nil && unreleased {
		section, err = changes(string(text), "Unreleased")
	}
	if err != nil {
		return err
	}
	return os.WriteFile(r.path("CHANGES.md"), []byte(section), 0o644)
}

// build builds a program and its SBOM.
func (r release) build(command string, p platform, program, sbom string) error {
	program, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w "+r.ldflags, "-o", program, ".")
	build.Dir, build.Stderr = filepath.Join(r.repository, "cmd", command), os.Stderr
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.arch)
	if err := build.Run(); err != nil {
		return fmt.Errorf("build %s for %s/%s: %w", command, p.os, p.arch, err)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("SBOM of %s for %s/%s: %w", command, p.os, p.arch, err)
	}
	bill, err := bom(command, r.version, info)
	if err != nil {
		return err
	}
	return os.WriteFile(r.path(sbom), bill, 0o644)
}

func (r release) plugins() error {
	license, err := os.ReadFile(filepath.Join(r.repository, "LICENSE"))
	if err != nil {
		return err
	}
	completion, err := os.ReadFile(filepath.Join(r.repository, "cmd", "kubectl-netpol", completionName))
	if err != nil {
		return err
	}
	var archives []archive
	for _, p := range plugins {
		name := fmt.Sprintf("kubectl-netpol-%s-%s-%s", r.version, p.os, p.arch)
		program := filepath.Join(r.folder, name)
		if err := r.build("kubectl-netpol", p, program, name+".cdx.json"); err != nil {
			return err
		}
		content, err := os.ReadFile(program)
		if err := errors.Join(err, os.Remove(program)); err != nil {
			return err
		}
		packed, err := pack(pluginFiles(p, content, completion, license)...)
		if err != nil {
			return err
		}
		a := archive{platform: p, name: name + ".tar.gz", sum: fmt.Sprintf("%x", sha256.Sum256(packed))}
		if err := os.WriteFile(r.path(a.name), packed, 0o644); err != nil {
			return err
		}
		archives = append(archives, a)
	}
	manifest, err := krew(r.version, r.project, archives)
	if err != nil {
		return err
	}
	return os.WriteFile(r.path("netpol.yaml"), manifest, 0o644)
}

// agents cross-builds the programs of the image.
func (r release) agents() error {
	for _, p := range agents {
		for _, program := range []string{"kube-network-policies", "status-writer"} {
			name := fmt.Sprintf("%s-%s-%s-%s", program, r.version, p.os, p.arch)
			if err := r.build(program, p, r.path(name), name+".cdx.json"); err != nil {
				return err
			}
		}
	}
	return nil
}

// chart packages the Helm chart with the name and the version of the published image.
func (r release) chart() error {
	c, err := chart.Load(r.repository)
	if err != nil {
		return err
	}
	if err := chart.SetRelease(c, r.version, r.image); err != nil {
		return err
	}
	_, err = chartutil.Save(c, r.folder)
	return err
}

// manifests writes the files for kubectl, which name the published image.
func (r release) manifests() error {
	c, err := chart.Load(r.repository)
	if err != nil {
		return err
	}
	uninstall, err := os.ReadFile(filepath.Join(r.repository, "uninstall.yaml"))
	if err != nil {
		return err
	}
	before := chart.Image(c)
	if err := chart.SetRelease(c, r.version, r.image); err != nil {
		return err
	}
	files, err := chart.Files(c)
	if err != nil {
		return err
	}
	files["uninstall.yaml"] = strings.ReplaceAll(string(uninstall), "image: "+before+"\n", "image: "+chart.Image(c)+"\n")
	for name, text := range files {
		if filepath.Base(name) == name { // the others are for kustomize
			err = errors.Join(err, os.WriteFile(r.path(name), []byte(text), 0o644))
		}
	}
	return err
}

func (r release) checksums() error {
	entries, err := os.ReadDir(r.folder)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range entries {
		content, err := os.ReadFile(r.path(e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return os.WriteFile(r.path("SHA256SUMS"), []byte(sums.String()), 0o644)
}
