// Package servers builds the programs that the tests use from their Go modules:
// kube-apiserver, etcd and kubectl, and the programs of a whole cluster. Each folder next to
// this file is a module that pins one release with its go.sum. Built programs are kept in the
// user's cache, so that only the first run on a machine waits.
//
// The package does not know how the programs are run.
package servers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Release is a set of programs that are built from one version of a module.
type Release struct {
	folder   string            // the folder of the module
	part     string            // a part of the module's programs, all if empty
	name     string            // for messages, without the version
	module   string            // whose version the release has
	programs map[string]string // file name to package; NAME.test is the package's tests
	// stamped are packages whose variables hold the version. Without them a
	// server calls itself v0.0.0 and clients do not know what it can do.
	stamped []string
	cgo     bool // needs a C compiler
}

// The releases that the tests use.
var (
	// Newest is the newest Kubernetes that can be built.
	Newest = kubernetes("v1.37", "api", "kube-apiserver", "kubectl")
	// WithStatus is the last Kubernetes whose NetworkPolicy has a status, behind
	// the feature gate NetworkPolicyStatus.
	WithStatus = kubernetes("v1.27", "", "kube-apiserver")
	// Etcd is the store of both Kubernetes releases.
	Etcd = Release{
		folder:   "etcd",
		name:     "etcd",
		module:   "go.etcd.io/etcd/server/v3",
		programs: map[string]string{"etcd": "go.etcd.io/etcd/server/v3"},
	}
	// DNS is the DNS server of clusters.
	DNS = Release{
		folder:   "coredns",
		name:     "coredns",
		module:   "github.com/coredns/coredns",
		programs: map[string]string{"coredns": "."},
	}
	// KubeRouter also implements NetworkPolicy: the truth tables are run on it for comparison. It is
	// the one of K3s, whose go.sum has the checksums of its module.
	KubeRouter = Release{
		folder:   "kube-router",
		name:     "kube-router",
		module:   "github.com/cloudnativelabs/kube-router/v2",
		programs: map[string]string{"kube-router": "."},
	}
	// Flannel is the network that policy-only agents are most often used with. Its backend udp, which
	// is not used here, is in C.
	Flannel = Release{
		folder:   "flannel",
		name:     "flannel",
		module:   "github.com/flannel-io/flannel",
		programs: map[string]string{"flanneld": "github.com/flannel-io/flannel"},
		cgo:      true,
	}
	// Clusters are the Kubernetes releases that nodes of tests/cluster/e2e/cluster can run,
	// each followed by its end-to-end tests. These take as long to build as Kubernetes
	// itself.
	Clusters = []Release{
		cluster("v1.35"), endToEnd("v1.35"), cluster("v1.36"), endToEnd("v1.36"), cluster("v1.37"), endToEnd("v1.37"),
	}
	// All are the releases that the tests of this module need.
	All = []Release{Etcd, Newest, WithStatus}
)

// kubernetesPrograms are where the sources of Kubernetes' programs are.
var kubernetesPrograms = map[string]string{
	"agnhost":                 "k8s.io/kubernetes/test/images/agnhost",
	"e2e.test":                "k8s.io/kubernetes/test/e2e",
	"ginkgo":                  "github.com/onsi/ginkgo/v2/ginkgo",
	"images":                  "../images.go",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
	"regression-issue-74839":  "k8s.io/kubernetes/test/images/regression-issue-74839",
}

// kubernetes returns these programs of a release of Kubernetes.
func kubernetes(folder, part string, programs ...string) Release {
	r := Release{
		folder:   folder,
		part:     part,
		name:     "kubernetes",
		module:   "k8s.io/kubernetes",
		programs: map[string]string{},
		stamped:  []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"},
	}
	for _, name := range programs {
		r.programs[name] = kubernetesPrograms[name]
	}
	return r
}

func cluster(folder string) Release {
	return kubernetes(folder, "", "agnhost", "images", "kube-apiserver", "kube-controller-manager", "kube-proxy",
		"kube-scheduler", "kubectl", "kubelet", "regression-issue-74839")
}

func endToEnd(folder string) Release {
	return kubernetes(folder, "e2e", "e2e.test", "ginkgo")
}

// Named returns the release of FOLDER or FOLDER/PART.
func Named(name string) (Release, error) {
	var known []string
	for _, r := range slices.Concat(All, Clusters, []Release{DNS, KubeRouter, Flannel}) {
		if path.Join(r.folder, r.part) == name {
			return r, nil
		}
		known = append(known, path.Join(r.folder, r.part))
	}
	return Release{}, fmt.Errorf("no release %q, only %s", name, strings.Join(known, ", "))
}

// Missing returns the programs of r that Build would have to build, by name.
func (r Release) Missing(ctx context.Context) ([]string, error) {
	source, err := r.source(ctx)
	if err != nil {
		return nil, err
	}
	folder, err := r.cache(ctx, source)
	if err != nil {
		return nil, err
	}
	return r.missing(folder)
}

// Build returns the folder that holds the programs of r, and builds those that
// are missing, which takes minutes and the network. It reports its progress to log.
// Several processes may call it at once: one builds, the others wait.
func (r Release) Build(ctx context.Context, log io.Writer) (folder string, err error) {
	source, err := r.source(ctx)
	if err != nil {
		return "", err
	}
	if folder, err = r.cache(ctx, source); err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("folder of %s: %w", r.folder, err)
	}
	lock, err := os.Create(filepath.Join(folder, "lock"))
	if err != nil {
		return "", fmt.Errorf("lock of %s: %w", folder, err)
	}
	defer lock.Close() // which unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	missing, err := r.missing(folder)
	if err != nil || len(missing) == 0 {
		return folder, err
	}
	fmt.Fprintf(log, "building %d programs from source into %s, each of which takes minutes: %s\n", len(missing), folder, strings.Join(missing, ", "))
	for i, name := range missing {
		start := time.Now()
		fmt.Fprintf(log, "building %s (%d of %d)\n", name, i+1, len(missing))
		if err := r.build(ctx, source, filepath.Join(folder, name), r.programs[name], log); err != nil {
			return "", fmt.Errorf("build %s of %s: %w", name, r.folder, err)
		}
		fmt.Fprintf(log, "built %s in %s\n", name, time.Since(start).Round(time.Second))
	}
	return folder, nil
}

// source returns the folder of the module for r.
func (r Release) source(ctx context.Context) (string, error) {
	here, err := output(ctx, "", "go", "list", "-f", "{{.Dir}}", "sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers")
	return filepath.Join(here, r.folder), err
}

// cache returns the folder of the built programs of r. Its name depends on the version, on
// go.sum, and on the module's own program, if it has one.
func (r Release) cache(ctx context.Context, source string) (string, error) {
	user, err := os.UserCacheDir() // which heeds XDG_CACHE_HOME
	if err != nil {
		return "", err
	}
	version, err := r.version(ctx, source)
	if err != nil {
		return "", err
	}
	own, err := filepath.Glob(filepath.Join(source, "*.go"))
	if err != nil {
		return "", err
	}
	pins := sha256.New()
	for _, file := range append([]string{filepath.Join(source, "go.mod"), filepath.Join(source, "go.sum")}, own...) {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		pins.Write(content)
	}
	name := fmt.Sprintf("%s-%s-%x", r.name, version, pins.Sum(nil)[:4])
	return filepath.Join(user, "kube-network-policies", "servers", name), nil
}

func (r Release) version(ctx context.Context, source string) (string, error) {
	return output(ctx, source, "go", "list", "-m", "-f", "{{.Version}}", r.module)
}

func (r Release) missing(folder string) ([]string, error) {
	var missing []string
	for _, name := range slices.Sorted(maps.Keys(r.programs)) {
		switch _, err := os.Stat(filepath.Join(folder, name)); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, name)
		case err != nil:
			return nil, err
		}
	}
	return missing, nil
}

// build installs a program by renaming, so that an existing one is complete.
func (r Release) build(ctx context.Context, source, file, program string, log io.Writer) error {
	version, err := r.version(ctx, source)
	if err != nil {
		return err
	}
	flags := []string{"-s", "-w"}
	numbers := strings.Split(version, ".")
	for _, p := range r.stamped {
		flags = append(flags,
			"-X", p+".gitVersion="+version,
			"-X", p+".gitMajor="+strings.TrimPrefix(numbers[0], "v"),
			"-X", p+".gitMinor="+numbers[1])
	}
	args := []string{"build"}
	if strings.HasSuffix(file, ".test") {
		args = []string{"test", "-c", "-vet=off"}
	}
	args = append(args, "-trimpath", "-ldflags", strings.Join(flags, " "), "-o", file+".new", program)
	cmd := command(ctx, source, "go", args...)
	if r.cgo {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// output returns the output of a program, without the final newline.
func output(ctx context.Context, folder, name string, args ...string) (string, error) {
	said, err := command(ctx, folder, name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(said)), nil
}

// command runs a program that ends with ctx and with this process.
func command(ctx context.Context, folder, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}
