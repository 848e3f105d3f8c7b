package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/pkg/queue"
	"sigs.k8s.io/kube-network-policies/tests/bench/cluster"
	"sigs.k8s.io/kube-network-policies/tests/bench/load"
	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// readyTimeout bounds the start of the deciding process: an agent reads its policies
// while the others start.
const readyTimeout = 2 * time.Minute

// udpPort is the first port of the sink.
const udpPort = 9000

// setup is one way to decide about packets, with traffic through it: a client and a
// server behind a node of their own.
type setup struct {
	name           string
	lab            *lab.Lab
	node           *lab.Node
	client, server *lab.Pod
	pid            int // of the process that decides, 0 if the kernel does

	flows    *load.Flows
	sink     *load.Sink
	acceptor *load.Acceptor
	stop     func() error // ends that process
}

// newSetup builds the network and the servers. Nothing decides about packets yet.
func newSetup(ctx context.Context, name string) (_ *setup, err error) {
	s := &setup{name: name, stop: func() error { return nil }}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", name, err), s.close())
		}
	}()
	if s.lab, err = lab.New(ctx, lab.Config{Nodes: 1}); err != nil {
		return nil, err
	}
	s.node = s.lab.Nodes[0]
	pods, err := s.lab.AddPods(ctx, endpoints()...)
	if err != nil {
		return nil, err
	}
	s.server, s.client = pods[0], pods[1]
	if err := s.client.Set("ipv4/ip_local_port_range", "1024 65535"); err != nil {
		return nil, err
	}
	if s.flows, err = load.OpenFlows(s.client.NetNS(), s.at(udpPort)); err != nil {
		return nil, err
	}
	if s.sink, err = load.OpenSink(s.server.NetNS(), s.at(udpPort)); err != nil {
		return nil, err
	}
	s.acceptor, err = load.OpenAcceptor(s.server.NetNS(), s.at(cluster.Port))
	return s, err
}

// endpoints are a server in the first namespace, which the policies select, and a
// client in the second one. They are the same in every setup.
func endpoints() []*corev1.Pod {
	pods := []*corev1.Pod{cluster.Pod(0, namespaces), cluster.Pod(1, namespaces)}
	for _, pod := range pods {
		pod.Spec.NodeName, pod.Status = "node-1", corev1.PodStatus{}
	}
	return pods
}

const namespaces = 2

func (s *setup) at(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(s.server.Addr(lab.IPv4), port)
}

// close ends everything. It may be called at any stage.
func (s *setup) close() error {
	err := s.stop()
	if s.flows != nil {
		err = errors.Join(err, s.flows.Close())
	}
	if s.sink != nil {
		err = errors.Join(err, s.sink.Close())
	}
	if s.acceptor != nil {
		err = errors.Join(err, s.acceptor.Close())
	}
	if s.lab != nil {
		s.lab.Close()
	}
	return err
}

// stats returns the kernel's statistics of the node's queues.
func (s *setup) stats() (stats []queue.Stat, err error) {
	err = load.Inside(s.node.NetNS(), func() (err error) {
		stats, err = queue.Host{}.Stats()
		return err
	})
	return stats, err
}

// decideByRules has the kernel accept every new connection.
func (s *setup) decideByRules(ctx context.Context) error {
	_, err := s.node.Run(ctx, hop("accept"), "nft", "-f", "-")
	return err
}

// decideByCallback has the callback loop accept every new connection.
func (s *setup) decideByCallback(ctx context.Context, binary string) error {
	if err := divert(ctx, s.node); err != nil {
		return err
	}
	cmd := exec.Command("nsenter", "--net="+s.node.NetNS(), binary)
	cmd.Stderr = os.Stderr
	alive, err := cmd.StdinPipe() // it ends when this process does
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.pid = cmd.Process.Pid // nsenter's own process becomes the program
	s.stop = func() error { return errors.Join(alive.Close(), cmd.Wait()) }
	return s.waitBound(ctx)
}

// waitBound waits until a process listens to a queue.
func (s *setup) waitBound(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return lab.Poll(ctx, func() (bool, error) {
		stats, err := s.stats()
		return len(stats) > 0, err
	})
}

// decideByAgent has an agent with the given number of queues decide about every new
// connection by the given number of policies.
func (s *setup) decideByAgent(ctx context.Context, binary, dir string, policies, queues int) error {
	manifests, err := lab.NewManifests(dir)
	if err != nil {
		return err
	}
	if err := manifests.Put("cluster", s.objects(policies)...); err != nil {
		return err
	}
	agent, err := s.node.StartAgent(lab.AgentConfig{
		Binary: binary, Manifests: manifests.Dir(), Args: []string{fmt.Sprintf("--nfqueue-count=%d", queues)},
	})
	if err != nil {
		return err
	}
	s.pid = agent.PID()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return agent.WaitReady(ctx)
}

// objects returns the cluster and the given number of policies that select the
// server, of which the last one allows the client.
func (s *setup) objects(policies int) []runtime.Object {
	objects := []runtime.Object{s.node.Object(), s.server.Object, s.client.Object}
	for _, pod := range []*lab.Pod{s.server, s.client} {
		objects = append(objects, lab.NewNamespace(pod.Object.Namespace, nil))
	}
	for _, policy := range cluster.Policies(s.server.Object.Namespace, policies-1) {
		objects = append(objects, policy)
	}
	return append(objects, cluster.Allowing(s.server.Object.Namespace, s.client.Object.Namespace))
}
