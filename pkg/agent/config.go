package agent

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// Config configures an agent.
type Config struct {
	// NodeName is the name of the Node on whose pods policies are enforced.
	NodeName string
	// Version is that of the program, for module.State.
	Version string
	// Source returns where the cluster is read from. It is called once, after modules are made.
	Source func() clusterwatch.Source
	// Partial says that Source need not contain namespaces and nodes.
	Partial bool
	// Kinds are the administrators' kinds of policy that are enforced in
	// addition to NetworkPolicy.
	Kinds    []*compile.Kind
	Features compile.Features
	// Audit evaluates policies and enforces none of them.
	Audit bool
	// Denial is what becomes of denied packets of pods whose namespace does not say it.
	Denial compile.Denial
	// Queue is the lowest NFQUEUE number that the agent may use. It picks free numbers from
	// there.
	Queue uint16
	// Marks are the bits of packet and conntrack marks that the agent uses.
	Marks steer.Marks
	// SourceCheckExempt are names of interfaces, or patterns of path.Match, that accept
	// packets from any source. EveryInterface switches the check off.
	SourceCheckExempt []string
	// TunnelPorts are UDP ports of tunnels that end in programs of this node. Those of
	// tunnel devices are found automatically.
	TunnelPorts []uint16
	// PodTunnels are the tunnels of the node into which its pods may send.
	PodTunnels PodTunnels
	// PodAddressSource selects where addresses of the node's new pods are learned.
	PodAddressSource PodAddressSource
	// FailOpen holds the four failure policies.
	FailOpen FailOpen
	// SnapshotCache is the file that keeps the state of the cluster across restarts. Empty keeps none.
	SnapshotCache string
	// Modules are the optional parts of the agent, and Table the parts of the table that they use.
	Modules []module.Module
	Table   []steer.Part
	// Registry has all metrics.
	Registry *prometheus.Registry

	// started is when Run began, in tenths of a second since boot. An agent takes over from older
	// ones.
	started uint32

	queues uint16 // number of queues that decide packets, set by Run
	share  uint32 // steer.DefaultShare, or 0 if the kernel has no shares

	rejectMark uint32 // of denied packets that the kernel answers, 0 if it cannot
}

// defaultQueues is how many queues decide packets. The kernel spreads connections over
// them by CPU. More than four would take the cores of a large node from its pods.
func defaultQueues() uint16 { return uint16(min(runtime.NumCPU(), maxQueues)) }

const (
	maxQueues = 4
	// LastQueue is the most that Config.Queue may be: the last of the agent's numbers must
	// not exceed 65535.
	LastQueue = 0xffff - (2*maxQueues + 2)
)

// FailOpen holds a switch for each way to fail. All false, the default, drops
// what cannot be decided.
type FailOpen struct {
	NoAgent       bool // no agent listens, or it has no snapshot yet
	QueueFull     bool // the queue or its socket's buffer is full
	UnknownPacket bool // the packet cannot be parsed, or its pod is not known
	InternalError bool // deciding the packet panicked
}

// failures returns the switches by their names in the flag.
func (f *FailOpen) failures() map[string]*bool {
	return map[string]*bool{
		"no-agent": &f.NoAgent, "queue-full": &f.QueueFull, "unknown-packet": &f.UnknownPacket, "internal-error": &f.InternalError,
	}
}

// MarshalText implements encoding.TextMarshaler.
func (f FailOpen) MarshalText() ([]byte, error) {
	var names []string
	for name, on := range f.failures() {
		if *on {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return []byte(strings.Join(names, ",")), nil
}

// UnmarshalText parses a list of names, so that a FailOpen can be a flag.
func (f *FailOpen) UnmarshalText(text []byte) error {
	*f = FailOpen{}
	if len(text) == 0 {
		return nil
	}
	failures := f.failures()
	for name := range strings.SplitSeq(string(text), ",") {
		on := failures[name]
		switch {
		case on != nil:
			*on = true
		case string(text) == "true":
			return errors.New("was replaced: write no-agent")
		case string(text) == "false":
			return errors.New("was replaced: remove it, nothing fails open by default")
		default:
			return errors.New("must be a list of no-agent, queue-full, unknown-packet, internal-error")
		}
	}
	return nil
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("NodeName is empty"))
	}
	if c.Queue > LastQueue {
		errs = append(errs, fmt.Errorf("Queue %d is above %d", c.Queue, LastQueue))
	}
	return errors.Join(errs...)
}
