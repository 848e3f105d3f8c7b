package image

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// store is where buildah keeps images and containers, removed when the test ends.
type store struct {
	t      *testing.T
	folder string
}

func newStore(t *testing.T) store {
	t.Helper()
	for _, program := range []string{"buildah", "mmdebstrap"} {
		_, err := exec.LookPath(program)
		switch {
		case err == nil && os.Geteuid() == 0:
		case os.Getenv("NETNS_REQUIRED") == "":
			t.Skipf("needs root and %s (make test-image installs it)", program)
		default:
			t.Fatalf("needs root and %s (make test-image installs it)", program)
		}
	}
	return store{t, t.TempDir()}
}

// run runs a command and returns what it prints. Its errors are part of the test's.
func (s store) run(name string, args ...string) string {
	s.t.Helper()
	var said bytes.Buffer
	cmd := exec.CommandContext(s.t.Context(), name, args...)
	cmd.Stderr = &said
	output, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%v: %v\n%s%s", cmd, err, output, said.String())
	}
	return strings.TrimSpace(string(output))
}

// buildah needs no driver of the kernel and no service.
func (s store) buildah(args ...string) string {
	s.t.Helper()
	return s.run("buildah", append([]string{"--storage-driver", "vfs",
		"--root", filepath.Join(s.folder, "images"), "--runroot", filepath.Join(s.folder, "run")}, args...)...)
}

// goImage takes the place of the one that the Dockerfile names by digest.
const (
	debianImage = "localhost/debian"
	goImage     = "localhost/golang"
)

// makeBase makes the image that the Dockerfile starts from: Debian from its packages, with
// Go as it is on this machine. Modules come from Go's cache on this machine.
func (s store) makeBase() {
	s.t.Helper()
	archive := filepath.Join(s.folder, "debian.tar")
	s.run("mmdebstrap", "--quiet", "--variant=minbase", "bookworm", archive)
	s.commit(debianImage, "scratch", archive, "/", "--cmd", "bash")
	goRoot := s.run("go", "env", "GOROOT")
	s.commit(goImage, debianImage, goRoot, "/usr/local/go",
		"--env", "PATH=/usr/local/go/bin:/usr/sbin:/usr/bin:/sbin:/bin", "--env", "GOFLAGS=-buildvcs=false", "--env", "GOPROXY=file:///modules", "--env", "GOCACHE=/gocache")
	s.run("go", "-C", repository, "mod", "download")
}

// commit makes an image of another one and a file or folder.
func (s store) commit(name, from, what, where string, config ...string) {
	s.t.Helper()
	container := s.buildah("from", "--pull-never", from)
	s.buildah("add", "--quiet", container, what, where)
	s.buildah(append(append([]string{"config"}, config...), container)...)
	s.buildah("commit", "--quiet", "--rm", container, name)
}

// build builds the Dockerfile, with more options, and opens the image for a test.
func (s store) build(t *testing.T, options ...string) image {
	t.Helper()
	s.t = t
	name := "localhost/" + strings.ToLower(t.Name())
	s.buildah(slices.Concat([]string{"build", "--quiet", "--isolation", "chroot", "--pull-never", "--layers=false", "--platform", "linux/" + runtime.GOARCH,
		"--volume", s.run("go", "env", "GOMODCACHE") + "/cache/download:/modules:ro", "--volume", s.run("go", "env", "GOCACHE") + ":/gocache",
		"--build-arg", "GO_IMAGE=" + goImage,
		"--build-arg", "LDFLAGS=-X github.com/prometheus/common/version.Version=" + version + " -X main.version=" + version,
		"--tag", name}, options, []string{repository})...)
	container := s.buildah("from", "--pull-never", name)
	i := image{t: t, root: s.buildah("mount", container)}
	var inspected struct{ OCIv1 struct{ Config config } }
	if err := json.Unmarshal([]byte(s.buildah("inspect", container)), &inspected); err != nil {
		t.Fatal(err)
	}
	i.config = inspected.OCIv1.Config
	return i
}
