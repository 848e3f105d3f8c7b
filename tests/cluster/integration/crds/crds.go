// Package crds finds the CustomResourceDefinitions of the administrators' kinds of policies
// in each release of network-policy-api: in its Go module, which is pinned here by checksum.
package crds

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const module = "sigs.k8s.io/network-policy-api"

// Release is a release of network-policy-api.
type Release struct {
	version string
	sum     string // of the module, as in go.sum
}

// Releases that clusters use. A release replaces the definitions of an earlier one;
// ClusterNetworkPolicy is independent of the older kinds.
var (
	// V015 has AdminNetworkPolicy and BaselineAdminNetworkPolicy, and accepts any text with
	// dots or colons as an address.
	V015 = Release{"v0.1.5", "h1:xyS7VAaM9EfyB428oFk7WjWaCK6B129i+ILUF4C8l6E="}
	// V017 is the last release with these two kinds.
	V017 = Release{"v0.1.7", "h1:obY2FTEidLXVdRYu7gJ4q1RYE57pBnrpMqoE2LZgp4g="}
	// V020 has only ClusterNetworkPolicy.
	V020 = Release{"v0.2.0", "h1:W/f0Y9VoeQdOWjX/h2gZyLH6gZ5LLEXmh/9wy9mQWKw="}
	// V030 has ClusterNetworkPolicy in two versions: v1alpha2 as in V020, and v1beta1, which
	// is the stored version.
	V030 = Release{"v0.3.0", "h1:RL6fVXiix9IW1pj0ImkW645m+EWmb3dBGCiW19bg5+k="}
)

// Channel is the stability level of a definition's fields.
type Channel string

// The channels of every release.
const (
	Standard     Channel = "standard"
	Experimental Channel = "experimental"
)

// Files returns the files of all definitions of a channel. They are downloaded
// if they are not in the module cache.
func (r Release) Files(ctx context.Context, c Channel) ([]string, error) {
	folder, err := r.folder(ctx)
	if err != nil {
		return nil, err
	}
	pattern := filepath.Join(folder, "config", "crd", string(c), "policy.networking.k8s.io_*.yaml")
	files, err := filepath.Glob(pattern)
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("%s: no such file", pattern)
	}
	return files, err
}

func (r Release) String() string { return r.version }

// Versioned converts a manifest of the newest version to a version of the release.
func (r Release) Versioned(manifest string) string {
	if r == V020 {
		return strings.ReplaceAll(manifest, "/v1beta1", "/v1alpha2")
	}
	return manifest
}

// folder returns the folder of the release in the module cache.
func (r Release) folder(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@"+r.version)
	cmd.Dir = os.TempDir() // outside of all modules, so that none is changed
	cmd.Env = append(os.Environ(), "GOWORK=off")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	answer, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download %s@%s: %w: %s", module, r.version, err, answer)
	}
	var got struct{ Dir, Sum string }
	if err := json.Unmarshal(answer, &got); err != nil {
		return "", fmt.Errorf("download %s@%s: %w in %s", module, r.version, err, answer)
	}
	if got.Sum != r.sum {
		return "", fmt.Errorf("%s@%s has the sum %s, want %s", module, r.version, got.Sum, r.sum)
	}
	return got.Dir, nil
}
