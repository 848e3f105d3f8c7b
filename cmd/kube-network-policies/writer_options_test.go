package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

func parseWriter(args ...string) (*writerOptions, error) {
	o := newWriterOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.addFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return o, o.validate(fs.Args())
}

func TestWrongWriterFlags(t *testing.T) {
	for _, tc := range []struct {
		arg  string
		want []string // parts of the error
	}{
		{"--startup-taint=a/b/c", []string{"--startup-taint=a/b/c"}},
		{"--denials-port=70000", []string{"--denials-port", "70000"}},
		{"--denials-port=9080 --denials-token-file=t", []string{`--denials-ca-file=`}},
		{"--denials-port=9080 --denials-ca-file=c", []string{`--denials-token-file=`}},
		{"--denials-ca-file=c", []string{"--denials-ca-file=c", "needs --denials-port"}},
		{"--status-sink=status", []string{"--status-sink=status", "auto, subresource, annotation, none"}},
		{"--condition-prefix=Example/x", []string{"--condition-prefix=Example/x"}},
		{"--status-qps=0", []string{"--status-qps=0"}},
		{"--status-qps=NaN", []string{"--status-qps=NaN"}},
		{"--status-burst=0", []string{"--status-burst=0"}},
		{"--leader-elect-namespace=", []string{"--leader-elect-namespace="}},
		{"--metrics-bind-address=9080", []string{"--metrics-bind-address=9080", "host:port"}},
		{"--feature-gates=EndPorts=false", []string{"--feature-gates", `"EndPorts"`, "DomainNames, EndPort, Nodes, SCTP"}},
		{"--logging-format=xml", []string{"--logging-format=xml"}},
		{"--nfqueue-id=1", []string{"nfqueue-id"}},
		{"now", []string{`"now"`}},
	} {
		t.Run(tc.arg, func(t *testing.T) {
			_, err := parseWriter(strings.Fields(tc.arg)...)
			wantError(t, err, tc.want)
		})
	}
}

func TestKindAndSinkFlags(t *testing.T) {
	config := &rest.Config{Host: "http://localhost"}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	const (
		np, anp, banp, cnp = "NetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"

		admin    = "--admin-network-policy --baseline-admin-network-policy --cluster-network-policy"
		inStatus = anp + " subresource, " + banp + " subresource, " + cnp + " subresource"
		all      = np + " subresource annotation, " + inStatus
	)
	for args, want := range map[string]string{
		"":                                   np + " subresource annotation",
		"--status-sink=subresource":          np + " subresource",
		"--status-sink=annotation":           np + " annotation",
		"--status-sink=none":                 np,
		"--admin-network-policy":             np + " subresource annotation, " + anp + " subresource",
		"--baseline-admin-network-policy":    np + " subresource annotation, " + banp + " subresource",
		"--cluster-network-policy":           np + " subresource annotation, " + cnp + " subresource",
		admin:                                all,
		"--status-sink=subresource " + admin: np + " subresource, " + inStatus,
		"--status-sink=annotation " + admin:  np + " annotation, " + inStatus,
		"--status-sink=none " + admin:        np + ", " + anp + ", " + banp + ", " + cnp,
		"--status-sink=none --cleanup":       all, // another writer may have had other flags
	} {
		t.Run(args, func(t *testing.T) {
			o, err := parseWriter(strings.Fields(args)...)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, k := range o.statusKinds(dynamicClient, client, compile.AllFeatures()) {
				line := k.Name
				for _, s := range k.Sinks {
					line += " " + s.Name()
				}
				got = append(got, line)
			}
			if strings.Join(got, ", ") != want {
				t.Errorf("kinds and sinks %q, want %q", strings.Join(got, ", "), want)
			}
		})
	}
}
