package suite

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// incapable is a backend that supports nothing.
type incapable struct{ netpol.Backend }

func (incapable) Supports() netpol.Support { return netpol.Support{} }
func (incapable) Close() error             { return nil }

func newIncapable(context.Context) (netpol.Backend, error) { return incapable{}, nil }

func TestRunRejectsInvalidFlags(t *testing.T) {
	command := Command{
		Default: "incapable",
		Backends: map[string]NewBackend{
			"incapable": newIncapable,
			"broken":    func(context.Context) (netpol.Backend, error) { return nil, errors.New("no such machine") },
		},
		Reference: incapable{},
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"unknown backend", []string{"-backend", "nowhere"}, `-backend "nowhere": want one of broken, cluster, incapable`},
		{"invalid pattern", []string{"-run", "("}, "-run: "},
		{"no scenario matches", []string{"-run", "no such thing"}, "matches no scenario"},
		{"no such folder", []string{"-dir", "/nowhere"}, "load /nowhere"},
		{"no such flag", []string{"-nothing"}, "-nothing"},
		{"argument", []string{"scenarios"}, `unexpected argument "scenarios"`},
		{"backend does not start", []string{"-backend", "broken"}, "start broken: no such machine"},
		{"no kubeconfig", []string{"-backend", "cluster", "-kubeconfig", "/nowhere"}, "start cluster: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := command.Run(t.Context(), &strings.Builder{}, c.args)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run(%q) = %v, want an error with %q", c.args, err, c.want)
			}
		})
	}
}

func TestRunPrintsTheVersion(t *testing.T) {
	var out strings.Builder
	if err := (Command{}).Run(t.Context(), &out, []string{"--version"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{", version ", " (commit ", runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output does not contain %q:\n%s", want, &out)
		}
	}
}

func TestRunReportsUnsupportedScenarios(t *testing.T) {
	command := Command{Default: "incapable", Backends: map[string]NewBackend{"incapable": newIncapable}}
	var out strings.Builder
	if err := command.Run(t.Context(), &out, []string{"-run", "^default deny of ingress to a namespace$"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"default deny of ingress to a namespace: not supported by this backend: 2 nodes\n", "incapable: 0 scenarios, "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output does not contain %q:\n%s", want, &out)
		}
	}
}

// unhealthy is a cluster in which nothing connects.
type unhealthy struct{ open }

func (unhealthy) Probe(_ context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	return make([]netpol.Outcome, len(connections)), nil
}

// In a cluster that does not work all scenarios would fail. None is played, and the error says
// what does not connect.
func TestRunEndsIfTheClusterIsNotHealthy(t *testing.T) {
	command := Command{Default: "unhealthy", Backends: map[string]NewBackend{"unhealthy": func(context.Context) (netpol.Backend, error) { return unhealthy{}, nil }}}
	var out strings.Builder

	err := command.Run(t.Context(), &out, []string{"-run", "namespace"})

	if err == nil || !strings.Contains(err.Error(), "no scenario is played") || !strings.Contains(err.Error(), "x/*, y/*, z/* -> x/*, y/*, z/*: not observed, should be connected") || out.Len() > 0 {
		t.Errorf("got %v\n%s", err, &out)
	}
}

func TestRunWithoutReferenceHasNoFolders(t *testing.T) {
	var out strings.Builder
	if err := (Command{}).Run(t.Context(), &out, []string{"-help"}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "-kubeconfig") || strings.Contains(out.String(), "-dir") {
		t.Errorf("help:\n%s", &out)
	}
}
