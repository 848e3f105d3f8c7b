// Package module is the door between the agent and its optional parts, which are wired in
// cmd/kube-network-policies/modules.go. The agent knows no module, and a module no other one.
package module

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/cri"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Module is an optional part of the agent.
type Module struct {
	Name string
	// Flags adds the flags of the module. Nil adds none.
	Flags func(*pflag.FlagSet)
	// New returns what the module adds to an agent, after its flags are parsed.
	New func(*Core) (Part, error)
}

// Single are hooks that at most one module has: two that have the same are an error.
type Single struct {
	// Classes has the kernel decide packets by itself.
	Classes *Classes
	// Learned looks up the domain names that pods have learned, for rules that name domains.
	Learned policy.Learned
	// Observe has whole packets shown to this module.
	Observe *Observe
	// InForce returns what is in force, for State.
	InForce func(context.Context) *inforce.Answer
	// Admit returns nil if the agent of another node with a certificate may ask. Without it none may.
	Admit func(context.Context, *x509.Certificate) error
}

// Part is what a module adds to an agent. Nil fields are not used.
type Part struct {
	Single
	// Begin is called before any loop of this module, and before the cluster is read.
	Begin func(context.Context)
	// Prepare is called with each snapshot before it decides packets.
	Prepare func(*policy.Snapshot)
	// Withdraw is called with each snapshot but the first, once it alone decides packets: what follows
	// from earlier decisions about these addresses, or all of them, may be wrong.
	Withdraw func(ctx context.Context, addrs []netip.Addr, all bool)
	// Ready returns why the agent is not ready because of this module.
	Ready func() error
	// Tap observes packets.
	Tap event.Tap
	// Explain returns what the module knows of why egress denied a packet at that time, "" for nothing.
	Explain func(s *policy.Snapshot, q policy.Query, at time.Time) string
	// Sandboxes is called with the sandboxes of this node, newest first, when they change. It may keep
	// the slice.
	Sandboxes func(newestFirst []cri.Sandbox)
	// Bridges is called with whether pods of the node are attached to bridges, while sources are checked,
	// and with the ports of bridges without pods.
	Bridges func(filters bool, otherPorts []string)
	// Contains is called with the resource versions up to which the published snapshot contains all changes, by
	// kind, and with how often versions have gone back: those of different numbers cannot be compared.
	Contains func(versions map[string]string, restores int)
	// NodeChanged is called when the Node of the agent appears or disappears.
	NodeChanged func()
	// Repaired is called after the table was repaired: who has changed it may have changed others.
	Repaired func()
	// Loops run until their context ends.
	Loops []func(context.Context) error
	// Serve has handlers of requests.
	Serve []Handler
}

// Handler serves the requests of some clients that match a pattern of http.ServeMux.
type Handler struct {
	To      Client
	Pattern string
	http.Handler
}

// Client is a set of clients.
type Client uint8

// Clients.
const (
	Socket Client = 1 << iota // those of the probe socket
	Writer                    // the status writer
	Agents                    // agents of other nodes that Single.Admit admits
)

// Classes are classes of packets that the kernel decides without the agent.
type Classes struct {
	// Accept reports whether the kernel may accept the class of an event, whose lasting decision
	// allows its packet: the table gets the packet with the lower mark.
	Accept func(*event.Event) bool
	// For is how long the kernel accepts a class without the agent.
	For time.Duration
	// Decides returns the decision by which the kernel decides packets of a class, and since when.
	Decides func(packet.Class) (d policy.Decision, since time.Time, ok bool)
	// Healthy returns an error while the kernel may decide otherwise than the current snapshot.
	Healthy func() error
}

// Observe is what packets a module sees before they are decided.
type Observe struct {
	// Between returns pods of this node and servers. TCP and UDP packets between them are shown.
	Between func(*policy.Snapshot) (pods []netip.Addr, servers []netip.AddrPort)
	// Packet reads a packet, from its IP header on. It is called from any goroutine, and payload is valid
	// only during the call.
	Packet func(payload []byte)
}

// Core is what a module sees of the agent. What it refers to is valid once a loop or handler runs.
type Core struct {
	// Node is the name of the node, and Audit is set if the agent enforces no policy.
	Node  string
	Audit bool
	// Logger is for logs of modules, and Registry has all metrics.
	Logger   klog.Logger
	Registry *prometheus.Registry
	// Live returns why the agent needs a restart, and Ready why it is not ready.
	Live, Ready func() error
	// Handlers returns those of all modules and of the agent, and Admit returns nil if the agent of a node
	// may ask.
	Handlers func() []Handler
	Admit    func(context.Context, *x509.Certificate) error
	// Client returns the pod at the address of a client, empty if none is known, and whether the address
	// belongs to pods of this node.
	Client func(netip.Addr) (pod string, ours bool)
	// State describes the agent, and Facts what it knows about its node.
	State func() State
	Facts func() Facts
	// Learned is that of the module that has it, and Explain that of all modules.
	Learned policy.Learned
	Explain func(s *policy.Snapshot, q policy.Query, at time.Time) string
	// Problem returns why packets may be decided by something else than the last snapshot after whose
	// publication WaitApplied and WaitMarked returned nil. They wait until nftables, and the marks of connections,
	// are as the last published snapshot wants them.
	Problem, WaitApplied, WaitMarked func(context.Context) error
	// Following returns each kind with Seen and Behind, and how often versions have gone back.
	Following func() (kinds []inforce.Kind, restores int)
	// Uncertain returns the pods of which an address may be another's, and the current snapshot, nil before the
	// first.
	Uncertain func() ([]*policy.Endpoint, *policy.Snapshot)
	// Resteer has Observe.Between called again, after its result has changed.
	Resteer func()
	// CloseIncomplete has new connections of these pods of the node, and of all pods in the ranges, wait for the
	// first snapshot, unless an earlier agent's decisions hold: objects cannot be read.
	CloseIncomplete func(pods []netip.Addr, ranges []netip.Prefix)
	// Decides returns the decision by which the kernel decides packets of a class itself, and since
	// when. EvaluateClass evaluates a class with the current snapshot, and reports whether the decision
	// is lasting. ReportClass passes packets that the kernel has decided to the taps of modules.
	Decides       func(packet.Class) (d policy.Decision, since time.Time, ok bool)
	EvaluateClass func(packet.Class) (d policy.Decision, lasting bool)
	ReportClass   func(c packet.Class, d policy.Decision, packets uint64)
	// Flushed returns when the verdicts of all packets that were decided before are sent, and Alone
	// reports whether no other agent may still give verdicts on this node.
	Flushed func()
	Alone   func() bool
	// Connections calls yield with each tracked connection that the current snapshot allows, and
	// reports whether the kernel counts their bytes.
	Connections func(ctx context.Context, yield func(*Connection)) (counted bool, err error)
	// NodesAt returns the other nodes that may have a new pod at an address, and SetSandboxesOf replaces
	// the sandboxes of one.
	NodesAt        func(netip.Addr) []string
	SetSandboxesOf func(node string, newestFirst []cri.Sandbox)
}

// Facts are what the agent knows about its node. Each of them may look right by itself while
// nothing is enforced, because they contradict each other.
type Facts struct {
	// OwnNode says why the pods of the agent's node name may not be those of this machine. It
	// is nil if they are.
	OwnNode error
	// Pods are the addresses of the node's pods.
	Pods []netip.Addr
	// Sandboxed is set if the CNI cache contains an address of Pods. The addresses of new pods
	// are then known before the pods run, and Ranges need not contain them.
	Sandboxed bool
	// Ranges are the pod CIDRs of the Node.
	Ranges []netip.Prefix
	// Conflicts is the number of addresses that the statuses of pods or nodes claim although
	// they belong to another object.
	Conflicts int
	// Unlinked is set if interfaces and routes are known and no interface leads to a pod.
	Unlinked bool
	// Untracked is the number of packets of pods that were decided without connection tracking
	// (NOTRACK), if Counted is set.
	Untracked uint64
	Counted   bool
	// Holds is set while the agent holds the table and has read Steered, the number of packets
	// that the table sent to queues, and Received, the number that reached the agent's queues.
	Holds             bool
	Steered, Received uint64
}

// Connection is a connection that the kernel tracks.
type Connection struct {
	Packet packet.Packet // opened the connection
	// Decision is the decision of Snapshot about the packet, and Would the one with audited
	// policies, nil if its verdict is the same.
	Decision policy.Decision
	Would    *policy.Decision
	Snapshot *policy.Snapshot
	Bytes    uint64 // in both directions
}

// State describes an agent when it answers.
type State struct {
	// Version is that of the agent's program.
	Version string `json:"version"`
	// NotReady is why the agent is not ready, empty if it is.
	NotReady string `json:"notReady,omitempty"`
	// Pods is the number of pods of the node that the agent knows.
	Pods int `json:"pods"`
	// Snapshot is since when the agent decides by the latest snapshot of the cluster, nil before
	// the first one.
	Snapshot *time.Time `json:"snapshot,omitempty"`
	// InForce is what is in force. Agents of earlier versions have none.
	InForce *inforce.Answer `json:"inForce,omitempty"`
}
