package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/cmd/internal/buildversion"
	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/pkg/agent"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/agent/serve"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/links"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

const (
	// defaultQueue is the default of --nfqueue-id. Other software, such as kindnetd, uses
	// numbers around 0 and 100.
	defaultQueue = 7100
	// gcPercent lets the heap grow by two thirds between collections instead of doubling.
	// Most of the heap is the state of the cluster, which is not garbage; the rest is decoded
	// objects. docs/performance has the figures.
	gcPercent = 66
)

// options are the flags of the agent. Flags that need no further work are parsed into cfg.
type options struct {
	command.Shared
	cfg     agent.Config
	serve   serve.Config
	folder  string // of manifests
	modules []module.Module

	source clusterwatch.Source // set by config, or by a module

	// For modules, set by config; nil with manifests.
	client *rest.Config
	api    *clusterwatch.APIServer
	key    *tls.Certificate // proves this agent to other ones, nil without a key
}

func newOptions() *options {
	o := &options{Shared: command.NewShared(), cfg: agent.Config{
		Version:          buildversion.Version(),
		Queue:            defaultQueue,
		Marks:            steer.DefaultMarks,
		PodAddressSource: agent.PodAddressAuto,
	}}
	o.modules = modules(o)
	return o
}

func (o *options) AddFlags(fs *pflag.FlagSet) {
	o.Shared.AddFlags(fs)
	c := &o.cfg
	fs.Var(command.NewValue("", o.setNodeName), "hostname-override", "`NAME` of this machine's Node object; empty uses the host name. With the name of no Node the agent is not ready and decides nothing")
	fs.StringVar(&o.folder, "manifests", o.folder, "`FOLDER` of manifests (pods, namespaces, nodes, policies) to enforce instead of those of an API server")
	fs.Var(command.Number(&c.Queue, agent.LastQueue), "nfqueue-id", "first `NUMBER` of the agent's NFQUEUE numbers: two for each queue, and three more. If another process uses one of them, the agent takes the next free range")
	fs.TextVar(&c.Marks, "mark", c.Marks, "`MASK` of the two bits of packet and connection marks that are the agent's: the higher one for what it has decided, the lower one for blocked connections and remembered classes. No other software may use them")
	fs.TextVar(&c.Denial, "deny", c.Denial, "`MODE` of denials by policies of pods whose namespace has no annotation "+compile.DenyAnnotation+": drop, or reject, which answers denied packets with a TCP reset or an ICMP error, so that clients fail at once")
	fs.Var(command.Items(o.addExempt), "source-check-exempt", "`INTERFACES`, or patterns such as net*, that may receive packets of any source, in addition to the uplinks that the agent finds. * switches off the check of sources, and the one that keeps pods out of the node's tunnels")
	fs.Var(command.Items(o.addTunnelPort), "tunnel-ports", "UDP `PORTS` at which programs of this node receive tunnels, in addition to those of its tunnel devices. Through one that is missing, pods can send past every policy")
	fs.Var(command.Items(c.PodTunnels.ParsePodTunnel), "pod-tunnels", "`TUNNELS` of this node into which its pods may send, each udp/PORT, gre, ipip, ipv6, l2tp or mpls. Policies do not apply to the packets inside")
	fs.TextVar(&c.FailOpen, "fail-open", c.FailOpen, "`CASES` in which packets of selected pods are accepted instead of dropped: no-agent (none runs, or it has not read the cluster yet), queue-full, unknown-packet (it cannot be parsed, or its pod stays unknown), internal-error (its evaluation panics)")
	fs.TextVar(&c.PodAddressSource, "pod-address-source", c.PodAddressSource, "where addresses of new pods of this node are learned: the `FOLDER` with the results of network plugins (not ready while it cannot be read), status (seconds later), or auto: /var/lib/cni/results if it is there, and the status")
	fs.Var(command.Checked(&o.serve.AnswersBindAddress, command.IsEmptyOrHostPort), "status-bind-address", "address where the status writer asks what is in force and was denied, and agents of other nodes for new pods, as `HOST:PORT`; empty for none. Needs the right to get the writer's Lease, and the key in "+tlskey.File)
	fs.StringVar(&o.serve.ProbeSocket, "probe-socket", o.serve.ProbeSocket, "`PATH` of a unix socket for the commands probe and flows; empty means none")
	fs.StringVar(&c.SnapshotCache, "snapshot-cache", c.SnapshotCache, "`FILE` that keeps the state of the cluster across restarts, for a day, and with .names behind it that of learned domain names; without its folder nothing is kept. Empty keeps none")
	for _, m := range o.modules {
		if m.Flags != nil {
			m.Flags(fs)
		}
	}
}

func (o *options) setNodeName(s string) error {
	o.cfg.NodeName = strings.ToLower(strings.TrimSpace(s)) // as the kubelet does
	if s != "" && o.cfg.NodeName == "" {
		return errors.New("is blank")
	}
	return nil
}

func (o *options) addExempt(pattern string) error {
	if err := links.CheckPattern(pattern); err != nil {
		return fmt.Errorf("must be the name of an interface or a pattern (%w)", err)
	}
	o.cfg.SourceCheckExempt = append(o.cfg.SourceCheckExempt, pattern)
	return nil
}

func (o *options) addTunnelPort(s string) error {
	port, err := agent.ParsePort(s)
	o.cfg.TunnelPorts = append(o.cfg.TunnelPorts, port)
	return err
}

// Validate returns an error for each flag that contradicts other flags. What cannot be read when the agent
// starts, such as the folder of --manifests, is no wrong flag: the agent closes the node and waits for it.
func (o *options) Validate(args []string) error {
	c := &o.cfg
	errs := []error{command.NoArguments(args), o.Logging.Validate()}
	for _, f := range []struct {
		flag  string
		value any
		needs bool // an API server
	}{
		{"kubeconfig", o.Kubeconfig, o.Kubeconfig != ""},
		{"metrics-tls", o.MetricsTLS, o.MetricsTLS != command.TLSOff},
		{"snapshot-cache", c.SnapshotCache, c.SnapshotCache != ""},
		{"status-bind-address", o.serve.AnswersBindAddress, o.serve.AnswersBindAddress != ""},
	} {
		if f.needs && o.folder != "" {
			errs = append(errs, command.FlagError(f.flag, f.value, "needs an API server, and cannot be used together with --manifests=%s", o.folder))
		}
	}
	return errors.Join(errs...)
}

// config returns the configuration of the agent for valid options.
func (o *options) config(ctx context.Context) (cfg agent.Config, err error) {
	cfg = o.cfg
	cfg.Kinds, cfg.Features, cfg.Audit = o.AdminKinds(), o.Features, o.Audit
	o.serve.MetricsBindAddress = o.MetricsBindAddress
	if cfg.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return cfg, fmt.Errorf("--hostname-override is empty and the host has no name: %w", err)
		}
		cfg.NodeName = strings.ToLower(strings.TrimSpace(name))
	}
	if o.folder != "" {
		cfg.Partial = true
		return cfg, nil
	}
	if o.client, err = o.Client(); err != nil {
		return cfg, err
	}
	if o.serve.MetricsAccess, err = o.MetricsTLS.Access(ctx, o.client, cfg.NodeName); err != nil {
		return cfg, err
	}
	if err = o.setAnswers(ctx, cfg.NodeName, o.client, tlskey.File); err != nil {
		return cfg, err
	}
	if o.api, err = clusterwatch.Connect(o.client); err != nil {
		return cfg, err
	}
	o.source = o.api
	return cfg, nil
}

// Run runs the agent.
func (o *options) Run(ctx context.Context) error {
	if err := o.Apply(); err != nil {
		return err
	}
	cfg, err := o.config(ctx)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	cfg.Registry, cfg.Modules = httpserver.NewRegistry(), o.modules
	cfg.Source = func() clusterwatch.Source { return o.source }
	return agent.Run(ctx, cfg)
}
