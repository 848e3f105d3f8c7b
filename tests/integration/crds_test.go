package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/integration/crds"
)

// define makes a server serve the kinds of a release until the test ends, in the
// place of those of another one.
func define(t *testing.T, plane *controlplane.ControlPlane, r crds.Release, c crds.Channel) {
	t.Helper()
	defineFiles(t, plane, must[[]string](t)(r.Files(t.Context(), c))...)
}

func defineFiles(t *testing.T, plane *controlplane.ControlPlane, files ...string) {
	t.Helper()
	k := newKubectl(t, plane.Admin())
	for _, file := range files {
		k.run("apply", "--server-side", "--force-conflicts", "--validate=strict", "-f", file)
		k.run("wait", "--for=condition=Established", "-f", file)
	}
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { undefineFiles(ctx, k, files...) })
}

// undefine takes the kinds of a release away, with all their objects.
func undefine(t *testing.T, plane *controlplane.ControlPlane, r crds.Release, c crds.Channel) {
	t.Helper()
	undefineFiles(t.Context(), newKubectl(t, plane.Admin()), must[[]string](t)(r.Files(t.Context(), c))...)
}

func undefineFiles(ctx context.Context, k *kubectl, files ...string) {
	k.t.Helper()
	for _, file := range files {
		must[string](k.t)(k.with(ctx, "", "delete", "--ignore-not-found", "-f", file))
	}
}

// Kubernetes 1.27 knows no addresses in validation rules. What was released
// since, its users cannot have.
func TestServersAcceptDefinitions(t *testing.T) {
	for _, tc := range []struct {
		release crds.Release
		servers []*server
	}{
		{crds.V015, releases},
		{crds.V017, []*server{newest}},
		{crds.V020, []*server{newest}},
	} {
		for _, channel := range []crds.Channel{crds.Standard, crds.Experimental} {
			t.Run(fmt.Sprint(tc.release, " ", channel), func(t *testing.T) {
				on(t, tc.servers, func(t *testing.T, plane *controlplane.ControlPlane) { define(t, plane, tc.release, channel) })
			})
		}
	}
	k := newKubectl(t, statusOff.start(t).Admin())
	for _, release := range []crds.Release{crds.V017, crds.V020} {
		for _, file := range must[[]string](t)(release.Files(t.Context(), crds.Standard)) {
			if _, err := k.try("", "apply", "--server-side", "-f", file); err == nil || !strings.Contains(err.Error(), "isCIDR") {
				t.Errorf("%s: got %v, want that isCIDR is not known", file, err)
			}
		}
	}
}
