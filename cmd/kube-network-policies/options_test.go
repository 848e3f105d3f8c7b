package main

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/cmd/internal/buildversion"
	"sigs.k8s.io/kube-network-policies/cmd/internal/command/commandtest"
	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/agent/serve"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// parseAgent returns the options of args, or the error of parsing or validation.
func parseAgent(args ...string) (*options, error) {
	o := newOptions()
	return o, program.Parse(o, "", args)
}

// configOf returns the configuration that args make.
func configOf(t *testing.T, args ...string) (agent.Config, serve.Config) {
	t.Helper()
	o, err := parseAgent(append([]string{"--manifests=.", "--hostname-override=n"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := o.config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cfg, o.serve
}

func TestWrongFlags(t *testing.T) {
	for _, tc := range []struct {
		args string
		want []string // parts of the error
	}{
		{"--nfqueue-id=70000", []string{"--nfqueue-id=70000: ", "0-65525"}},
		{"--nfqueue-id=65526", []string{"--nfqueue-id=65526: "}},
		{"--nfqueue-id=-1", []string{"--nfqueue-id=-1: "}},
		{"--nfqueue-id=x", []string{"--nfqueue-id=x: "}},
		{"--mark=0x3800", []string{"--mark=0x3800: ", "exactly two bits"}},
		{"--mark=0x5000", []string{"--mark=0x5000: ", "kube-proxy"}},
		{"--mark=bit", []string{"--mark=bit: ", "number"}},
		{"--remember-verdicts=5s", []string{"--remember-verdicts=5s: ", "20s", "1h0m0s"}},
		{"--remember-verdicts=2h", []string{"--remember-verdicts=2h: "}},
		{"--remember-verdicts=30500ms", []string{"--remember-verdicts=30500ms: ", "whole seconds"}},
		{"--remember-verdicts=-1s", []string{"--remember-verdicts=-1s: "}},
		{"--kubeconfig=k --manifests=.", []string{"--manifests=.", "--kubeconfig=k: "}},
		{"--metrics-bind-address=9080", []string{"--metrics-bind-address=9080: ", "host:port"}},
		{"--metrics-tls=self-signed --manifests=.", []string{"--metrics-tls=self-signed: ", "--manifests=."}},
		{"--metrics-tls=on", []string{"--metrics-tls=on: ", "off, self-signed or an absolute path"}},
		{"--metrics-tls=tls", []string{"--metrics-tls=tls: "}},
		{"--feature-gates=EndPorts=false", []string{"--feature-gates=EndPorts=false: ", `"EndPorts"`, "CIDRGroups, DomainNames, EndPort, "}},
		{"--dns-resolvers=10.96.0.10,dns", []string{"--dns-resolvers=10.96.0.10,dns: ", `"dns"`, "IP:port"}},
		{"--dns-resolvers=127.0.0.53", []string{"--dns-resolvers=127.0.0.53: "}},
		{"--source-check-exempt=eth1,net[", []string{"--source-check-exempt=eth1,net[: ", `"net["`, "must be the name of an interface or a pattern"}},
		{"--source-check-exempt=eth1,", []string{"--source-check-exempt=eth1,: ", `""`}},
		{"--tunnel-ports=8285,0", []string{"--tunnel-ports=8285,0: ", `"0"`, "1-65535"}},
		{"--pod-tunnels=gre,udp/8472,tcp/1", []string{"--pod-tunnels=gre,udp/8472,tcp/1: ", `"tcp/1"`, "neither udp/PORT nor one of gre"}},
		{"--pod-address-source=nri", []string{"--pod-address-source=nri: ", "auto, status or an absolute path"}},
		{"--pod-address-source=results", []string{"--pod-address-source=results: "}},
		{"--snapshot-cache=snapshot --manifests=.", []string{"--snapshot-cache=snapshot: ", "--manifests=."}},
		{"--logging-format=xml", []string{"--logging-format=xml: "}},
		{"--fail-open=perhaps", []string{"--fail-open=perhaps: ", "no-agent, queue-full, unknown-packet, internal-error"}},
		{"--fail-open=no-agent,full", []string{"--fail-open=no-agent,full: "}},
		{"status", []string{`"status"`}},
		{"--manifests=/does/not/exist --snapshot-cache=s --kubeconfig=k", []string{"--snapshot-cache=s: ", "--kubeconfig=k: "}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			_, err := parseAgent(strings.Fields(tc.args)...)
			commandtest.WantError(t, err, tc.want)
		})
	}
	_, err := parseAgent("--hostname-override= ")
	commandtest.WantError(t, err, []string{"--hostname-override= : is blank"})
}

// Flags and values of earlier versions are errors that name their replacement.
func TestRemovedFlags(t *testing.T) {
	const kinds = "write --admin-policies"
	for _, tc := range []struct {
		args string
		want []string // parts of the error
	}{
		{"--block-established=false", []string{"--block-established=false", "always blocked"}},
		{"--otlp-endpoint=http://127.0.0.1:4318", []string{"--flow-log"}},
		{"--admin-network-policy", []string{kinds}},
		{"--baseline-admin-network-policy=true", []string{kinds}},
		{"--cluster-network-policy", []string{kinds}},
		{"--block-mark=0x800", []string{"--mark=0x1800"}},
		{"--remember-mark 0x800", []string{"--mark=0x1800"}},
		{"--mark=0x1000", []string{"--mark=0x1000: ", "0x1800"}},
		{"--cleanup --snapshot-cache=x", []string{"kube-network-policies cleanup"}},
		{"--cleanup-wait", []string{"kube-network-policies cleanup --wait"}},
		{"--cni-cache-dir=/x", []string{"--pod-address-source=FOLDER"}},
		{"--pod-address-source=cni-cache", []string{"--pod-address-source=cni-cache: ", "/var/lib/cni/results"}},
		{"--fail-open=true", []string{"--fail-open=true: ", "write no-agent"}},
		{"--fail-open=false", []string{"--fail-open=false: ", "remove it"}},
		{"--fail-open", []string{"--fail-open"}},
		{"--fail-open-queue-full", []string{"write --fail-open=queue-full"}},
		{"--fail-open-unknown-packet", []string{"write --fail-open=unknown-packet"}},
		{"--fail-open-internal-error", []string{"write --fail-open=internal-error"}},
		{"--metrics-secure --metrics-tls-cert-file=c", []string{"--metrics-secure: ", "--metrics-tls-cert-file=c: ", "write --metrics-tls=self-signed"}},
		{"--divert=auto --early-udp=auto --max-crashes=5", []string{"--divert=auto: ", "--early-udp=auto: ", "--max-crashes=5: ", "remove it"}},
		{"--nfqueue-count=2 --pod-share=0 --evaluation-memory=1 --max-pod-watches=1 --pod-watches=all --snapshot-cache-max-age=1h", []string{"--nfqueue-count=2", "--pod-share=0", "--evaluation-memory=1", "--max-pod-watches=1", "--pod-watches=all", "--snapshot-cache-max-age=1h"}},
	} {
		t.Run(tc.args, func(t *testing.T) {
			_, err := parseAgent(strings.Fields(tc.args)...)
			commandtest.WantError(t, err, tc.want)
		})
	}
}

// The status writer was a command of the agent.
func TestRemovedCommands(t *testing.T) {
	for _, args := range []string{"status-writer", "status-writer cleanup", "status-writer --status-sink=none --denials-port=1"} {
		t.Run(args, func(t *testing.T) {
			commandtest.WantError(t, program.CheckCommand(strings.Fields(args)), []string{"status-writer: the command was removed", "command: [status-writer]"})
		})
	}
}

func TestConfigOfOptions(t *testing.T) {
	cfg, served := configOf(t, "--hostname-override=Node1", "--nfqueue-id=7", "--mark=0x2200", "--remember-verdicts=1m",
		"--fail-open=queue-full,internal-error", "--feature-gates=SCTP=false", "--logging-format=json", "--pod-address-source=/cni",
		"--tunnel-ports=8285,1", "--pod-tunnels=gre,udp/8472", "--source-check-exempt=net*", "--probe-socket=/p", "--audit", "--metrics-bind-address=:1")
	want := agent.Config{
		NodeName: "node1", Version: buildversion.Version(), Partial: true, Queue: 7, Marks: steer.Marks{Decided: 0x2000, Lower: 0x200}, Table: []steer.Part{&steer.Remembered{For: time.Minute}},
		FailOpen: agent.FailOpen{QueueFull: true, InternalError: true},
		Features: compile.Features{EndPort: true, Nodes: true, DomainNames: true}, PodAddressSource: "/cni", TunnelPorts: []uint16{8285, 1},
		PodTunnels: agent.PodTunnels{Ports: []uint16{8472}, Protocols: []uint8{47}}, SourceCheckExempt: []string{"net*"}, Audit: true,
	}
	if wantServed := (serve.Config{ProbeSocket: "/p", MetricsBindAddress: ":1"}); served != wantServed {
		t.Errorf("served %+v, want %+v", served, wantServed)
	}
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got\n%+v, want\n%+v", cfg, want)
	}
}

func TestAdminPoliciesFlag(t *testing.T) {
	for args, want := range map[string]int{"": 0, "--admin-policies=false": 0, "--admin-policies": len(compile.Kinds) - 1} {
		t.Run(args, func(t *testing.T) {
			if cfg, _ := configOf(t, strings.Fields(args)...); len(cfg.Kinds) != want || slices.Contains(cfg.Kinds, compile.KindNetworkPolicy) {
				t.Errorf("kinds %v, want %d of administrators' policies", cfg.Kinds, want)
			}
		})
	}
}

// Nothing fails open by default.
func TestDefaults(t *testing.T) {
	cfg, served := configOf(t)
	want := agent.Config{
		NodeName: "n", Version: buildversion.Version(), Partial: true, Queue: 7100, Marks: steer.DefaultMarks, Table: []steer.Part{&steer.Remembered{For: 30 * time.Second}}, Features: compile.AllFeatures(),
		PodAddressSource: agent.PodAddressAuto,
	}
	if wantServed := (serve.Config{MetricsBindAddress: ":9080"}); served != wantServed {
		t.Errorf("served %+v, want %+v", served, wantServed)
	}
	if !reflect.DeepEqual(cfg, want) {
		t.Errorf("got\n%+v, want\n%+v", cfg, want)
	}
}
