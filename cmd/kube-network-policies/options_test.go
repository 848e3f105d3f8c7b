package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// parse returns the options of args, or the error of parsing or validation.
func parse(args ...string) (*options, error) {
	o := newOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.addFlags(fs)
	if err := explainRemoved(fs.Parse(args)); err != nil {
		return nil, err
	}
	return o, o.validate(fs.Args())
}

// configOf returns the configuration that args make.
func configOf(t *testing.T, args ...string) agent.Config {
	t.Helper()
	o, err := parse(append(args, "--manifests=.", "--hostname-override=n")...)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := o.config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// wantError checks that err contains all parts.
func wantError(t *testing.T, err error, parts []string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not contain %q", err, part)
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []string // parts of the error
	}{
		{[]string{"--nfqueue-id=70000"}, []string{"--nfqueue-id=70000", "0-65535"}},
		{[]string{"--nfqueue-id=-1"}, []string{"--nfqueue-id=-1"}},
		{[]string{"--nfqueue-id=x"}, []string{"--nfqueue-id", `"x"`}},
		{[]string{"--nfqueue-count=0"}, []string{"--nfqueue-count=0"}},
		{[]string{"--nfqueue-id=65535", "--nfqueue-count=2"}, []string{"--nfqueue-count=2", "65541"}},
		{[]string{"--nfqueue-id=65530", "--nfqueue-count=3"}, []string{"--nfqueue-count=3", "9 queue numbers", "65538"}},
		{[]string{"--pod-share=-1"}, []string{"--pod-share=-1", "0-1000000"}},
		{[]string{"--pod-share=1000001"}, []string{"--pod-share=1000001", "0-1000000"}},
		{[]string{"--max-crashes=-1"}, []string{"--max-crashes=-1"}},
		{[]string{"--divert=ebpf"}, []string{"--divert", `"ebpf"`, "xtables"}},
		{[]string{"--mark=0x3000"}, []string{"--mark=0x3000", "exactly one bit"}},
		{[]string{"--mark=0x4000"}, []string{"--mark=0x4000", "kube-proxy"}},
		{[]string{"--mark=bit"}, []string{"--mark=bit"}},
		{[]string{"--block-mark=0x6"}, []string{"--block-mark=0x6", "exactly one bit"}},
		{[]string{"--block-mark=0x8000"}, []string{"--block-mark=0x8000", "kube-proxy"}},
		{[]string{"--block-mark=bit"}, []string{"--block-mark=bit", "number"}},
		{[]string{"--block-mark=0x1000"}, []string{"--block-mark=0x1000", "--mark"}},
		{[]string{"--mark=0x800"}, []string{"--block-mark=0x800", "--mark"}},
		{[]string{"--block-established"}, []string{"--block-established was removed", "always blocked"}},
		{[]string{"--otlp-endpoint=http://127.0.0.1:4318"}, []string{"--otlp-endpoint was removed", "--flow-log"}},
		{[]string{"--block-established=false"}, []string{"--block-established was removed", "always blocked"}},
		{[]string{"--remember-verdicts=5s"}, []string{"--remember-verdicts=5s", "20s", "1h0m0s"}},
		{[]string{"--remember-verdicts=2h"}, []string{"--remember-verdicts=2h"}},
		{[]string{"--remember-verdicts=30500ms"}, []string{"--remember-verdicts=30.5s", "whole seconds"}},
		{[]string{"--remember-verdicts=-1s"}, []string{"--remember-verdicts=-1s"}},
		{[]string{"--remember-mark=0x6"}, []string{"--remember-mark=0x6", "exactly one bit"}},
		{[]string{"--remember-mark=0x1000"}, []string{"--remember-mark=0x1000", "--mark"}},
		{[]string{"--mark=0x800"}, []string{"--remember-mark=0x800", "--mark"}},
		{[]string{"--kubeconfig=k", "--manifests=."}, []string{"--manifests=.", "--kubeconfig=k"}},
		{[]string{"--manifests=does/not/exist"}, []string{"--manifests=does/not/exist"}},
		{[]string{"--metrics-bind-address=9080"}, []string{"--metrics-bind-address=9080", "host:port"}},
		{[]string{"--metrics-secure", "--manifests=."}, []string{"--metrics-secure=true", "--manifests=."}},
		{[]string{"--metrics-secure", "--metrics-tls-cert-file=tls.crt"}, []string{"--metrics-tls-cert-file=tls.crt", "--metrics-tls-private-key-file"}},
		{[]string{"--metrics-tls-cert-file=tls.crt", "--metrics-tls-private-key-file=tls.key"}, []string{"--metrics-tls-cert-file=tls.crt", "--metrics-secure"}},
		{[]string{"--feature-gates=EndPorts=false"}, []string{"--feature-gates", `"EndPorts"`, "DomainNames, EndPort, Nodes, SCTP"}},
		{[]string{"--dns-resolvers=10.96.0.10,dns"}, []string{"--dns-resolvers", `"dns"`, "IP:port"}},
		{[]string{"--source-check-exempt=eth1,net["}, []string{"--source-check-exempt=net[", "must be the name of an interface or a pattern"}},
		{[]string{"--tunnel-ports=8285,0"}, []string{"--tunnel-ports=0", "1-65535"}},
		{[]string{"--pod-tunnels=gre,udp/8472,tcp/1"}, []string{"--pod-tunnels=tcp/1", "neither udp/PORT nor one of gre"}},
		{[]string{"--pod-address-source=nri"}, []string{"--pod-address-source", `"nri"`, "auto, cni-cache, status"}},
		{[]string{"--pod-watches=own"}, []string{"--pod-watches", `"own"`, "all, needed"}},
		{[]string{"--pod-watches=needed", "--manifests=."}, []string{"--pod-watches=needed", "--manifests=."}},
		{[]string{"--max-pod-watches=0"}, []string{"--max-pod-watches=0", "1-62"}},
		{[]string{"--max-pod-watches=63"}, []string{"--max-pod-watches=63", "1-62"}},
		{[]string{"--cni-cache-dir=results"}, []string{"--cni-cache-dir=results", "absolute path"}},
		{[]string{"--dns-resolvers=127.0.0.53"}, []string{"--dns-resolvers", `"127.0.0.53"`}},
		{[]string{"--snapshot-cache=/does/not/exist/snapshot"}, []string{"--snapshot-cache=/does/not/exist/snapshot", "needs a folder"}},
		{[]string{"--snapshot-cache=/dev/null/snapshot"}, []string{"--snapshot-cache=/dev/null/snapshot", "needs a folder"}},
		{[]string{"--snapshot-cache=snapshot", "--manifests=."}, []string{"--snapshot-cache=snapshot", "--manifests=."}},
		{[]string{"--snapshot-cache-max-age=59s"}, []string{"--snapshot-cache-max-age=59s", "at least 1m0s"}},
		{[]string{"--logging-format=xml"}, []string{"--logging-format=xml"}},
		{[]string{"--fail-open=perhaps"}, []string{"--fail-open", "perhaps"}},
		{[]string{"status"}, []string{`"status"`}},
		{[]string{"--nfqueue-id=-1", "--mark=7"}, []string{"--nfqueue-id=-1", "--mark=7"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			_, err := parse(tc.args...)
			wantError(t, err, tc.want)
		})
	}
}

func TestConfigOfOptions(t *testing.T) {
	o, err := parse("--manifests=.", "--hostname-override=Node1", "--nfqueue-id=7", "--nfqueue-count=3", "--mark=0x200",
		"--fail-open-queue-full", "--feature-gates=SCTP=false", "--logging-format=json", "--pod-address-source=cni-cache", "--cni-cache-dir=/cni")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := o.config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if cfg.NodeName != "node1" || cfg.Queue != 7 || cfg.Queues != 3 || cfg.Mark != 0x200 || cfg.MetricsBindAddress != ":9080" {
		t.Errorf("got %+v", cfg)
	}
	if cfg.PodAddressSource != agent.PodAddressCNICache || cfg.CNICacheDir != "/cni" {
		t.Errorf("addresses of new pods from %v, %s", cfg.PodAddressSource, cfg.CNICacheDir)
	}
	if want := (compile.Features{EndPort: true, Nodes: true, DomainNames: true}); cfg.Features != want {
		t.Errorf("features %+v, want %+v", cfg.Features, want)
	}
	if f := cfg.FailOpen; f.NoAgent || !f.QueueFull || f.UnknownPacket || f.InternalError {
		t.Errorf("fail open: %+v, want only QueueFull", f)
	}
}

func TestKindFlags(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []*compile.Kind
	}{
		{nil, []*compile.Kind{}},
		{[]string{"--admin-network-policy"}, []*compile.Kind{compile.KindAdminNetworkPolicy}},
		{[]string{"--baseline-admin-network-policy"}, []*compile.Kind{compile.KindBaselineAdminNetworkPolicy}},
		{[]string{"--cluster-network-policy=true"}, []*compile.Kind{compile.KindClusterNetworkPolicy}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			if cfg := configOf(t, tc.args...); !slices.Equal(cfg.Kinds, tc.want) {
				t.Errorf("kinds %v, want %v", cfg.Kinds, tc.want)
			}
		})
	}
}

func TestEstablishedConnectionsAreAlwaysBlocked(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want uint32
	}{
		{nil, 0x800},
		{[]string{"--block-mark=0x400"}, 0x400},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			if cfg := configOf(t, tc.args...); cfg.BlockMark != tc.want {
				t.Errorf("mark %#x, want %#x", cfg.BlockMark, tc.want)
			}
		})
	}
}

func TestDNSResolversFlag(t *testing.T) {
	for args, want := range map[string]string{
		"":                               "[]",
		"--dns-resolvers=10.96.0.10":     "[10.96.0.10:53]",
		"--dns-resolvers=[fd00::a]:5353": "[[fd00::a]:5353]",
		"--dns-resolvers=10.96.0.10,fd00::a --dns-resolvers=192.0.2.1:5353": "[10.96.0.10:53 [fd00::a]:53 192.0.2.1:5353]",
	} {
		t.Run(args, func(t *testing.T) {
			if cfg := configOf(t, strings.Fields(args)...); fmt.Sprint(cfg.DNSResolvers) != want {
				t.Errorf("resolvers %v, want %s", cfg.DNSResolvers, want)
			}
		})
	}
}

// Nothing fails open by default.
func TestDefaultsFailClosed(t *testing.T) {
	o, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	if o.failOpen.NoAgent || o.failOpen.QueueFull || o.failOpen.UnknownPacket || o.failOpen.InternalError {
		t.Errorf("fails open by default: %+v", o.failOpen)
	}
	if o.features != compile.AllFeatures() {
		t.Errorf("features by default: %+v, want all", o.features)
	}
}
