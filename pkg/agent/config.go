package agent

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/policycache"
	"sigs.k8s.io/kube-network-policies/pkg/steer"
)

// Config configures an agent.
type Config struct {
	// NodeName is the name of the Node on whose pods policies are enforced.
	NodeName string
	// API is where the cluster is read from. Nil reads Manifests instead.
	API *policycache.APIServer
	// PodWatches is which pods of other nodes are watched.
	PodWatches PodWatches
	// MaxPodWatches is the most watches of NeededPods at a time, 1 to 62. Zero is the default.
	MaxPodWatches int
	// Manifests is a directory of Kubernetes objects, used without API.
	Manifests string
	// Kinds are the administrators' kinds of policy that are enforced in
	// addition to NetworkPolicy.
	Kinds    []*compile.Kind
	Features compile.Features
	// Audit evaluates policies and enforces none of them.
	Audit bool
	// Queue is the first number from which on NFQUEUE numbers are taken that no process
	// uses, and Queues how many queues decide packets.
	Queue, Queues uint16
	// Started is when the agent was started first in its container, in tenths of a
	// second since the machine was. An agent takes over from those that are older.
	// Zero means now.
	Started uint32
	// Restarts is how often the agent was started again in its container.
	Restarts int
	// Share is the number of packets per second of each local pod that are decided
	// before packets that exceed a share. Zero means that there are no shares.
	Share uint32
	// Divert is how the kernel hands packets to the queue.
	Divert steer.Divert
	// Mark is the one bit of packet and conntrack marks that is ours.
	Mark uint32
	// BlockMark is the one bit of conntrack marks that blocks established connections
	// that policies no longer allow.
	BlockMark uint32
	// RememberVerdicts is how long the kernel remembers that connections of a class are
	// allowed, see package verdictcache. Zero has every connection decided by the agent.
	// RememberMark is the one bit of packet marks for it.
	RememberVerdicts time.Duration
	RememberMark     uint32
	// EarlyUDP works around a race of kernels before 6.12 that costs packets of
	// DNS.
	EarlyUDP steer.EarlyUDP
	// SourceCheckExempt are names of interfaces, or patterns of path.Match, by which
	// packets of any source may come in. EveryInterface switches the check off.
	SourceCheckExempt []string
	// TunnelPorts are UDP ports of tunnels that end in programs of this node. Those of
	// tunnel devices are found automatically.
	TunnelPorts []uint16
	// PodTunnels are the tunnels of the node into which its pods may send.
	PodTunnels PodTunnels
	// DNSResolvers are the only resolvers whose answers to pods are believed.
	// Without any, these are the cluster's DNS Service and the node's nameservers.
	DNSResolvers []netip.AddrPort
	// PodAddressSource is where the addresses of new pods of the node are learned, and
	// CNICacheDir the folder of libcni's results.
	PodAddressSource PodAddressSource
	CNICacheDir      string
	// FailOpen holds the four failure policies.
	FailOpen FailOpen
	// LogDenied logs denied packets at a bounded rate.
	LogDenied bool
	// FlowLog receives records of flows, a line of JSON each. Nil receives none.
	FlowLog io.Writer
	// EvaluationMemory is the size in bytes of the cache of which rules select which
	// peers.
	EvaluationMemory int64
	// SnapshotCache is the file that keeps the state of the cluster across restarts.
	// Empty keeps none. A state is used that was current within SnapshotCacheMaxAge.
	SnapshotCache       string
	SnapshotCacheMaxAge time.Duration
	// MetricsBindAddress is the "host:port" of the HTTP endpoints.
	MetricsBindAddress string
	// MetricsAccess is who may read the metrics, over TLS. Nil serves them to all, as
	// plain HTTP.
	MetricsAccess *httpserver.Access
	// ProbeSocket is the path of a unix socket with the same endpoints, and with the records
	// of flows. Only this agent answers there, not another one of the node. Empty means none.
	ProbeSocket string

	beside bool // other queues are in use: probably another agent of this node's
}

// FailOpen holds a switch for each way to fail. All false, the default, drops
// what cannot be decided.
type FailOpen struct {
	NoAgent       bool // no agent listens, or it has no snapshot yet
	QueueFull     bool // the queue or its socket's buffer is full
	UnknownPacket bool // the packet cannot be parsed, or its pod is not known
	InternalError bool // deciding the packet panicked
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.NodeName == "" {
		errs = append(errs, errors.New("NodeName is empty"))
	}
	if (c.API == nil) == (c.Manifests == "") {
		errs = append(errs, errors.New("exactly one of API and Manifests is needed"))
	}
	if c.PodWatches == NeededPods && c.API == nil {
		errs = append(errs, errors.New("PodWatches: only an API server has watches of needed pods"))
	}
	if last := c.numbers().last(); last > 0xffff {
		errs = append(errs, fmt.Errorf("Queues: the last queue would be %d, above 65535", last))
	}
	return errors.Join(errs...)
}
