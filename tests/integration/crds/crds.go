// Package crds finds the CustomResourceDefinitions of the administrators' kinds
// of policies as each release of network-policy-api has published them: in its
// Go module, of which every byte is pinned here.
package crds

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

const module = "sigs.k8s.io/network-policy-api"

// Release is a release of network-policy-api.
type Release struct {
	version string
	sum     string // of the module, as go.sum has it
}

// The releases that clusters have. A later one of the same kinds follows an
// earlier one, ClusterNetworkPolicy stands beside the others.
var (
	// V015 has AdminNetworkPolicy and BaselineAdminNetworkPolicy, and takes for
	// an address whatever has dots or colons.
	V015 = Release{"v0.1.5", "h1:xyS7VAaM9EfyB428oFk7WjWaCK6B129i+ILUF4C8l6E="}
	// V017 has the last of these two kinds.
	V017 = Release{"v0.1.7", "h1:obY2FTEidLXVdRYu7gJ4q1RYE57pBnrpMqoE2LZgp4g="}
	// V020 has ClusterNetworkPolicy alone.
	V020 = Release{"v0.2.0", "h1:W/f0Y9VoeQdOWjX/h2gZyLH6gZ5LLEXmh/9wy9mQWKw="}
)

// Channel is how far the fields of a definition are agreed on.
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

// folder returns where the module cache has the release.
func (r Release) folder(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@"+r.version)
	cmd.Dir = os.TempDir() // outside of modules, none of which is to change
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
