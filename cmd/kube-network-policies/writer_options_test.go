package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/status"
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

func TestWrongWriterFlagsAreRefusedByNameAndValue(t *testing.T) {
	for _, tc := range []struct {
		arg  string
		want []string // parts of the error
	}{
		{"--status-sink=status", []string{"--status-sink=status", "auto, subresource, annotation, none"}},
		{"--condition-prefix=Example/x", []string{"--condition-prefix=Example/x"}},
		{"--status-qps=0", []string{"--status-qps=0"}},
		{"--status-qps=NaN", []string{"--status-qps=NaN"}},
		{"--status-burst=0", []string{"--status-burst=0"}},
		{"--leader-elect-namespace=", []string{"--leader-elect-namespace="}},
		{"--metrics-bind-address=9080", []string{"--metrics-bind-address=9080", "host:port"}},
		{"--feature-gates=EndPorts=false", []string{"--feature-gates=EndPorts", "EndPort, SCTP"}},
		{"--logging-format=xml", []string{"--logging-format=xml"}},
		{"--nfqueue-id=1", []string{"nfqueue-id"}},
		{"now", []string{`"now"`}},
	} {
		_, err := parseWriter(tc.arg)
		if err == nil {
			t.Errorf("%s: no error", tc.arg)
			continue
		}
		for _, part := range tc.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q does not name %q", tc.arg, err, part)
			}
		}
	}
}

func TestSinksAreChosenByFlag(t *testing.T) {
	config := &rest.Config{Host: "http://localhost"}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	both := status.SubresourceSink + " " + status.AnnotationSink
	for args, want := range map[string]string{
		"":                             both,
		"--status-sink=subresource":    status.SubresourceSink,
		"--status-sink=annotation":     status.AnnotationSink,
		"--status-sink=none":           "",
		"--status-sink=none --cleanup": both, // what is there was written with other flags
	} {
		o, err := parseWriter(strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range o.sinks(dynamicClient, client) {
			got = append(got, s.Name())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: sinks %v, want %s", args, got, want)
		}
	}
}
