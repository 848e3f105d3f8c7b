package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// parse returns the options of args, and what is wrong with them.
func parse(args ...string) (*options, error) {
	o := newOptions()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.addFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return o, o.validate(fs.Args())
}

func TestWrongFlagsAreRefusedByNameAndValue(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []string // parts of the error
	}{
		{[]string{"--nfqueue-id=70000"}, []string{"--nfqueue-id=70000", "0-65535"}},
		{[]string{"--nfqueue-id=-1"}, []string{"--nfqueue-id=-1"}},
		{[]string{"--nfqueue-id=x"}, []string{"--nfqueue-id", `"x"`}},
		{[]string{"--nfqueue-count=0"}, []string{"--nfqueue-count=0"}},
		{[]string{"--nfqueue-id=65535", "--nfqueue-count=2"}, []string{"--nfqueue-count=2", "65536"}},
		{[]string{"--nfqueue-id=65530", "--nfqueue-count=3"}, []string{"--nfqueue-count=3", "--pod-share", "65536"}},
		{[]string{"--pod-share=-1"}, []string{"--pod-share=-1", "0-1000000"}},
		{[]string{"--pod-share=1000001"}, []string{"--pod-share=1000001", "0-1000000"}},
		{[]string{"--divert=ebpf"}, []string{"--divert", `"ebpf"`, "xtables"}},
		{[]string{"--mark=0x3000"}, []string{"--mark=0x3000", "exactly one bit"}},
		{[]string{"--mark=0x4000"}, []string{"--mark=0x4000", "kube-proxy"}},
		{[]string{"--mark=bit"}, []string{"--mark=bit"}},
		{[]string{"--block-mark=0x6"}, []string{"--block-mark=0x6", "exactly one bit"}},
		{[]string{"--block-mark=0x8000"}, []string{"--block-mark=0x8000", "kube-proxy"}},
		{[]string{"--block-mark=bit"}, []string{"--block-mark=bit", "number"}},
		{[]string{"--block-established", "--block-mark=0x1000"}, []string{"--block-mark=0x1000", "--mark"}},
		{[]string{"--block-established", "--mark=0x800"}, []string{"--block-mark=0x800", "--mark"}},
		{[]string{"--kubeconfig=k", "--manifests=."}, []string{"--manifests=.", "--kubeconfig=k"}},
		{[]string{"--manifests=does/not/exist"}, []string{"--manifests=does/not/exist"}},
		{[]string{"--metrics-bind-address=9080"}, []string{"--metrics-bind-address=9080", "host:port"}},
		{[]string{"--feature-gates=EndPorts=false"}, []string{"--feature-gates=EndPorts", "DomainNames, EndPort, Nodes, SCTP"}},
		{[]string{"--feature-gates=SCTP"}, []string{"--feature-gates", `"SCTP"`}},
		{[]string{"--feature-gates=SCTP=perhaps"}, []string{"--feature-gates", "perhaps"}},
		{[]string{"--dns-resolvers=10.96.0.10,dns"}, []string{"--dns-resolvers", `"dns"`, "IP:port"}},
		{[]string{"--source-check-exempt=eth1,net["}, []string{"--source-check-exempt=net[", "must be the name of an interface or a pattern"}},
		{[]string{"--tunnel-ports=8285,0"}, []string{"--tunnel-ports=0", "1-65535"}},
		{[]string{"--pod-tunnels=gre,udp/8472,tcp/1"}, []string{"--pod-tunnels=tcp/1", "neither udp/PORT nor one of gre"}},
		{[]string{"--dns-resolvers=127.0.0.53"}, []string{"--dns-resolvers", `"127.0.0.53"`}},
		{[]string{"--logging-format=xml"}, []string{"--logging-format=xml"}},
		{[]string{"--fail-open=perhaps"}, []string{"--fail-open", "perhaps"}},
		{[]string{"status"}, []string{`"status"`}},
		{[]string{"--nfqueue-id=-1", "--mark=7"}, []string{"--nfqueue-id=-1", "--mark=7"}},
	} {
		_, err := parse(tc.args...)
		if err == nil {
			t.Errorf("%v: no error", tc.args)
			continue
		}
		for _, part := range tc.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%v: %q does not name %q", tc.args, err, part)
			}
		}
	}
}

func TestOptionsBecomeTheConfig(t *testing.T) {
	o, err := parse("--manifests=.", "--hostname-override=Node1", "--nfqueue-id=7", "--nfqueue-count=3", "--mark=0x200",
		"--fail-open-queue-full", "--feature-gates=SCTP=false", "--logging-format=json")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := o.config()
	if err != nil {
		t.Fatal(err)
	}
	if cfg.NodeName != "node1" || cfg.Queue != 7 || cfg.Queues != 3 || cfg.Mark != 0x200 || cfg.MetricsBindAddress != ":9080" {
		t.Errorf("got %+v", cfg)
	}
	if want := (compile.Features{EndPort: true, Nodes: true, DomainNames: true}); cfg.Features != want {
		t.Errorf("features %+v, want %+v", cfg.Features, want)
	}
	if f := cfg.FailOpen; f.NoAgent || !f.QueueFull || f.UnknownPacket || f.InternalError {
		t.Errorf("fail open: %+v, want only QueueFull", f)
	}
}

func TestEachFeatureHasItsGate(t *testing.T) {
	for gate, want := range map[string]func(*compile.Features){
		"DomainNames": func(f *compile.Features) { f.DomainNames = false },
		"EndPort":     func(f *compile.Features) { f.EndPort = false },
		"Nodes":       func(f *compile.Features) { f.Nodes = false },
		"SCTP":        func(f *compile.Features) { f.SCTP = false },
	} {
		o, err := parse("--feature-gates=" + gate + "=false")
		if err != nil {
			t.Fatal(err)
		}
		f := compile.AllFeatures()
		want(&f)
		if got := features(o.featureGates); got != f {
			t.Errorf("%s off: features %+v, want %+v", gate, got, f)
		}
	}
}

func TestEachKindHasItsFlag(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []*compile.Kind
	}{
		{nil, []*compile.Kind{}},
		{[]string{"--admin-network-policy"}, []*compile.Kind{compile.KindAdminNetworkPolicy}},
		{[]string{"--baseline-admin-network-policy"}, []*compile.Kind{compile.KindBaselineAdminNetworkPolicy}},
		{[]string{"--cluster-network-policy=true"}, []*compile.Kind{compile.KindClusterNetworkPolicy}},
	} {
		o, err := parse(append(tc.args, "--manifests=.", "--hostname-override=n")...)
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err := o.config(); err != nil || !slices.Equal(cfg.Kinds, tc.want) {
			t.Errorf("%v: %v, %v, want %v", tc.args, cfg.Kinds, err, tc.want)
		}
	}
}

func TestBlockMarkNeedsBlockEstablished(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want uint32
	}{
		{nil, 0},
		{[]string{"--block-mark=0x400"}, 0},
		{[]string{"--mark=0x800"}, 0},
		{[]string{"--block-established"}, 0x800},
		{[]string{"--block-established", "--block-mark=0x400"}, 0x400},
	} {
		o, err := parse(append(tc.args, "--manifests=.", "--hostname-override=n")...)
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err := o.config(); err != nil || cfg.BlockMark != tc.want {
			t.Errorf("%v: %#x, %v, want %#x", tc.args, cfg.BlockMark, err, tc.want)
		}
	}
}

func TestResolversAreRead(t *testing.T) {
	for args, want := range map[string]string{
		"":                               "[]",
		"--dns-resolvers=10.96.0.10":     "[10.96.0.10:53]",
		"--dns-resolvers=[fd00::a]:5353": "[[fd00::a]:5353]",
		"--dns-resolvers=10.96.0.10,fd00::a --dns-resolvers=192.0.2.1:5353": "[10.96.0.10:53 [fd00::a]:53 192.0.2.1:5353]",
	} {
		o, err := parse(append(strings.Fields(args), "--manifests=.", "--hostname-override=n")...)
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err := o.config(); err != nil || fmt.Sprint(cfg.DNSResolvers) != want {
			t.Errorf("%q: %v, %v, want %s", args, cfg.DNSResolvers, err, want)
		}
	}
}

// Nothing fails open unless it is asked for.
func TestDefaultsFailClosed(t *testing.T) {
	o, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	if o.failOpen.NoAgent || o.failOpen.QueueFull || o.failOpen.UnknownPacket || o.failOpen.InternalError {
		t.Errorf("fails open by default: %+v", o.failOpen)
	}
	if features(o.featureGates) != compile.AllFeatures() {
		t.Errorf("features by default: %+v", features(o.featureGates))
	}
	if o.queue != 100 {
		t.Errorf("queue %d by default, want 100", o.queue)
	}
}
