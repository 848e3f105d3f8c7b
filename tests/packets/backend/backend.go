// Package backend plays truth tables with the real agent and real packets on one machine:
// two connected nodes and their pods are network namespaces, and the agent on each node
// reads the state as manifests. It needs root.
package backend

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// nodes is the number of nodes.
const nodes = 2

// startTimeout limits how long agents may take to become ready.
const startTimeout = time.Minute

// withProposals returns flags with which agents enforce administrators' policies and all proposals.
func withProposals() []string {
	flags := []string{"--admin-policies"}
	for _, g := range compile.Gates {
		flags = append(flags, "--feature-gates="+g.Name+"=true")
	}
	return flags
}

// Backend is a lab with an agent on each node. A scenario reuses pods of the previous one
// with the same name and node.
type Backend struct {
	folder    string
	lab       *lab.Lab
	manifests lab.Manifests
	agents    []*lab.Agent
	network   *network
	rejects   bool   // what is denied
	peers     *peers // in place of agents
}

// Reject lets the agents answer what they deny.
const Reject = "--deny=reject"

// New builds the agent, unless the variable AGENT_BINARY names one, and calls Start.
func New(ctx context.Context, args ...string) (*Backend, error) {
	folder, err := os.MkdirTemp("", "netpol-netns-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder) // running agents keep the binary
	binary, err := agentBinary(ctx, folder)
	if err != nil {
		return nil, err
	}
	return Start(ctx, binary, args...)
}

// agentBinary returns the agent of the variable AGENT_BINARY, for machines without Go, or else builds it
// in folder.
func agentBinary(ctx context.Context, folder string) (string, error) {
	if binary := os.Getenv("AGENT_BINARY"); binary != "" {
		return binary, nil
	}
	return lab.BuildAgent(ctx, folder)
}

// Start builds the nodes and starts the agent binary on each, with args as additional
// flags.
func Start(ctx context.Context, binary string, args ...string) (_ *Backend, err error) {
	b := &Backend{rejects: slices.Contains(args, Reject)}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if err = b.build(ctx); err != nil {
		return nil, err
	}
	return b, b.startAgents(ctx, binary, args)
}

// build builds the nodes.
func (b *Backend) build(ctx context.Context) (err error) {
	if b.folder, err = os.MkdirTemp("", "netpol-netns-"); err != nil {
		return err
	}
	if b.manifests, err = lab.NewManifests(b.folder); err != nil {
		return err
	}
	if b.lab, err = lab.New(ctx, lab.Config{Nodes: nodes}); err != nil {
		return err
	}
	b.network, err = newNetwork(b.lab)
	return err
}

func (b *Backend) startAgents(ctx context.Context, binary string, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := b.write(&netpol.State{}); err != nil {
		return err
	}
	for _, node := range b.lab.Nodes {
		agent, err := node.StartAgent(lab.AgentConfig{Binary: binary, Manifests: b.manifests.Dir(), Args: append(withProposals(), args...)})
		if err != nil {
			return err
		}
		b.agents = append(b.agents, agent)
	}
	for _, agent := range b.agents {
		if err := agent.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Supports returns everything, but silent drops from agents that reject, and of peers only what
// NetworkPolicy says. The kernel may lack SCTP sockets, so an SCTP connection ends with the answer to
// its first packet.
func (b *Backend) Supports() netpol.Support {
	supported := netpol.Support{
		Protocols: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, netpol.ICMP},
		Families:  []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Features:  []netpol.Feature{netpol.Services, netpol.NodePorts, netpol.LoadBalancers, netpol.HostNetwork, netpol.OutsideHosts},
		Nodes:     nodes,
	}
	if b.peers != nil {
		return supported
	}
	supported.Features = append(supported.Features, netpol.CutsEstablished,
		netpol.AdminNetworkPolicies, netpol.ClusterNetworkPolicies, netpol.ExperimentalFields)
	supported.Features = slices.AppendSeq(supported.Features, maps.Keys(netpol.Proposals))
	if !b.rejects {
		supported.Features = append(supported.Features, netpol.SilentDrops)
	}
	return supported
}

// Apply starts pods and hosts, and then writes the manifests.
func (b *Backend) Apply(ctx context.Context, state *netpol.State) error {
	if err := b.network.apply(ctx, state); err != nil {
		return err
	}
	return b.write(state)
}

// write writes all objects into one file, which agents read as a whole.
func (b *Backend) write(state *netpol.State) error {
	if b.peers != nil {
		return b.publish(state)
	}
	var objects []runtime.Object
	for _, node := range b.Nodes() {
		objects = append(objects, node)
	}
	for _, namespace := range state.Namespaces {
		objects = append(objects, namespace)
	}
	for _, pod := range state.Pods {
		objects = append(objects, pod)
	}
	for _, policy := range state.AllPolicies() {
		objects = append(objects, policy)
	}
	return b.manifests.Put("state", objects...)
}

// Nodes returns the nodes as API objects.
func (b *Backend) Nodes() []*corev1.Node {
	var objects []*corev1.Node
	for _, node := range b.lab.Nodes {
		objects = append(objects, node.Object())
	}
	return objects
}

// Changes counts the changes of the cluster that are in force on a node: in the kernel's
// table, and for all packets. A change of a single object counts once.
type Changes struct{ Programmed, Enforced int }

// Since reports whether both counts have increased since before.
func (c Changes) Since(before Changes) bool {
	return c.Programmed > before.Programmed && c.Enforced > before.Enforced
}

// InForce returns the changes of each node.
func (b *Backend) InForce(ctx context.Context) ([]Changes, error) {
	var changes []Changes
	for _, agent := range b.agents {
		metrics, err := agent.Metrics(ctx)
		if err != nil {
			return nil, err
		}
		changes = append(changes, Changes{
			Programmed: int(metrics.Sum("netpol_policy_programming_duration_seconds_count")),
			Enforced:   int(metrics.Sum("netpol_snapshot_latency_seconds_count")),
		})
	}
	return changes, nil
}

// Probe tries all connections, many of them concurrently.
func (b *Backend) Probe(ctx context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	if b.peers != nil {
		if err := b.peers.running(); err != nil {
			return nil, err
		}
	}
	return b.network.probe(ctx, connections)
}

// Logs returns the logs of the agents.
func (b *Backend) Logs() string {
	var logs string
	for i, agent := range b.agents {
		logs += fmt.Sprintf("%s:\n%s\n", b.lab.Nodes[i].Name, agent.Log())
	}
	return logs
}

// Close stops the agents and removes the nodes.
func (b *Backend) Close() error {
	if b.peers != nil {
		b.peers.stop()
	}
	if b.lab != nil {
		b.lab.Close()
	}
	return os.RemoveAll(filepath.Clean(b.folder))
}
