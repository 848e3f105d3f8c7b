package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command/commandtest"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

func parseWriter(args ...string) (*writerOptions, error) {
	o := newWriterOptions()
	return o, program.Parse(o, "", args)
}

func TestWrongWriterFlags(t *testing.T) {
	for _, tc := range []struct {
		arg  string
		want []string // parts of the error
	}{
		{"--startup-taint=a/b/c", []string{"--startup-taint=a/b/c"}},
		{"--status-sink=status", []string{"--status-sink=status", "auto, subresource, annotation, none"}},
		{"--condition-prefix=Example/x", []string{"--condition-prefix=Example/x"}},
		{"--metrics-bind-address=9080", []string{"--metrics-bind-address=9080", "host:port"}},
		{"--feature-gates=EndPorts=false", []string{"--feature-gates", `"EndPorts"`, "CIDRGroups, DomainNames, EndPort, "}},
		{"--logging-format=xml", []string{"--logging-format=xml"}},
		{"--nfqueue-id=1", []string{"nfqueue-id"}},
		{"now", []string{`"now"`}},
	} {
		t.Run(tc.arg, func(t *testing.T) {
			_, err := parseWriter(strings.Fields(tc.arg)...)
			commandtest.WantError(t, err, tc.want)
		})
	}
}

// Flags and values of earlier versions are errors that name their replacement.
func TestRemovedFlags(t *testing.T) {
	const kinds = "write --admin-policies"
	for _, tc := range []struct {
		args string
		want []string // parts of the error
	}{
		{"--admin-network-policy", []string{kinds}},
		{"--cleanup", []string{"status-writer cleanup"}},
		{"--denials-port=9080 --denials-ca-file=c --denials-token-file=t", []string{"--denials-port=9080", "--denials-ca-file=c", "--denials-token-file=t", "the command flows"}},
		{"--events=false --status-qps=1 --status-burst=1", []string{"--events=false: ", "--status-qps=1: ", "--status-burst=1: "}},
		{"--leader-elect-namespace=x", []string{"namespace of the writer's pod"}},
		{"--metrics-secure", []string{"write --metrics-tls=self-signed"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			_, err := parseWriter(strings.Fields(tc.args)...)
			commandtest.WantError(t, err, tc.want)
		})
	}
}

func TestKindAndSinkFlags(t *testing.T) {
	config := &rest.Config{Host: "http://localhost"}
	discovery, err := apiclient.New(config, nil, corev1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	const (
		np, anp, banp, cnp = "NetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"

		admin    = "--admin-policies"
		inStatus = anp + " subresource, " + banp + " subresource, " + cnp + " subresource"
		all      = np + " subresource annotation, " + inStatus
	)
	kindsOf := func(o *writerOptions) string {
		var lines []string
		for _, k := range o.statusKinds(dynamicClient, discovery, compile.AllFeatures()) {
			line := k.Name
			for _, s := range k.Sinks {
				line += " " + s.Name()
			}
			lines = append(lines, line)
		}
		return strings.Join(lines, ", ")
	}
	for args, want := range map[string]string{
		"":                                   np + " subresource annotation",
		"--status-sink=subresource":          np + " subresource",
		"--status-sink=annotation":           np + " annotation",
		"--status-sink=none":                 np,
		admin:                                all,
		"--status-sink=subresource " + admin: np + " subresource, " + inStatus,
		"--status-sink=annotation " + admin:  np + " annotation, " + inStatus,
		"--status-sink=none " + admin:        np + ", " + anp + ", " + banp + ", " + cnp,
	} {
		t.Run(args, func(t *testing.T) {
			o, err := parseWriter(strings.Fields(args)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := kindsOf(o); got != want {
				t.Errorf("kinds and sinks %q, want %q", got, want)
			}
		})
	}
	// An earlier writer may have had other flags.
	cleanup := &writerCleanup{writerOptions: newWriterOptions()}
	if err := program.Parse(cleanup, cleanupName, []string{"--condition-prefix=example.com"}); err != nil || kindsOf(cleanup.writerOptions) != all {
		t.Errorf("cleanup of %q, %v, want %q", kindsOf(cleanup.writerOptions), err, all)
	}
}
