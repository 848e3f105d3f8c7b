package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/load"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

// readyTimeout limits the start of the deciding process. An agent reads its policies while
// the others start.
const readyTimeout = 2 * time.Minute

// udpPort is the destination port of floods.
const udpPort = 9000

// worldAddr is the address of the host outside the cluster to which all destinations are
// routed.
var worldAddr = netip.MustParseAddr("192.0.2.1")

// setup is one way to decide about packets, with its traffic: two pods of one node send,
// and a host outside the cluster receives.
type setup struct {
	way
	lab      *lab.Lab
	node     *lab.Node
	client   *lab.Pod
	floodPod *lab.Pod // sends floods
	pid      int      // of the deciding process, 0 if the kernel decides

	unsupported bool // nothing decides and nothing is measured

	classes, floodClasses *classes    // of client and of floodPod
	flows, flooder        *load.Flows // from client and from floodPod
	sent, delivered       *load.Meter // by both pods, at the node; to the world
	acceptor              *load.Acceptor
	stop                  []func() error // end processes
}

// newSetup builds the network and the servers. Nothing decides about packets yet.
func newSetup(ctx context.Context, w way) (_ *setup, err error) {
	s := &setup{way: w, classes: newClasses(), floodClasses: newClasses()}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", w.name, err), s.close())
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
	s.client, s.floodPod = pods[0], pods[1]
	if err := s.client.Set("ipv4/ip_local_port_range", "1024 65535"); err != nil {
		return nil, err
	}
	if s.flows, err = load.OpenFlows(s.client.NetNS()); err != nil {
		return nil, err
	}
	if s.flooder, err = load.OpenFlows(s.floodPod.NetNS()); err != nil {
		return nil, err
	}
	if s.sent, err = load.OpenMeter(s.node.NetNS(), udpPort, load.Pass); err != nil {
		return nil, err
	}
	return s, s.addWorld(ctx)
}

// addWorld adds the host with all destinations. It counts and drops datagrams as early as
// possible, and accepts connections.
func (s *setup) addWorld(ctx context.Context) error {
	world, err := s.lab.AddHost(ctx, s.node, "world", worldAddr)
	if err != nil {
		return err
	}
	if err := world.Set("core/somaxconn", "65535"); err != nil {
		return err
	}
	for _, destinations := range []string{allowed.String(), denied.String()} {
		if _, err := s.node.Run(ctx, "", "ip", "route", "add", destinations, "via", worldAddr.String(), "onlink", "dev", "pod3"); err != nil {
			return err
		}
		if _, err := world.Run(ctx, "", "ip", "route", "add", "local", destinations, "dev", "lo"); err != nil {
			return err
		}
	}
	if s.delivered, err = load.OpenMeter(world.NetNS(), udpPort, load.Drop); err != nil {
		return err
	}
	s.acceptor, err = load.OpenAcceptor(world.NetNS(), cluster.Port)
	return err
}

// endpoints returns the pods of one namespace, which the policies select. They are the same
// in every setup.
func endpoints() []*corev1.Pod {
	pods := []*corev1.Pod{cluster.Pod(0, 1), cluster.Pod(1, 1)}
	for _, pod := range pods {
		pod.Spec.NodeName, pod.Status = "node-1", corev1.PodStatus{}
	}
	return pods
}

// close ends everything. It may be called at any stage.
func (s *setup) close() (err error) {
	for _, stop := range s.stop {
		err = errors.Join(err, stop())
	}
	for _, f := range []*load.Flows{s.flows, s.flooder} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	for _, m := range []*load.Meter{s.sent, s.delivered} {
		if m != nil {
			err = errors.Join(err, m.Close())
		}
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

// decideByRules makes the kernel accept every new connection except denied ones.
func (s *setup) decideByRules(ctx context.Context) error {
	_, err := s.node.Run(ctx, hop(acceptRules), "nft", "-f", "-")
	return err
}

// decideByLoop makes a loop accept every new connection. The program reads that many queues
// until its standard input ends.
func (s *setup) decideByLoop(ctx context.Context, queues int, binary string) error {
	if err := divert(ctx, s.node, queues); err != nil {
		return err
	}
	if err := s.run(binary, fmt.Sprint(queues)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return lab.Poll(ctx, func() (bool, error) {
		stats, err := s.stats()
		return len(stats) == queues, err
	})
}

// run starts a deciding process on the node.
func (s *setup) run(binary string, args ...string) error {
	cmd := exec.Command("nsenter", append([]string{"--net=" + s.node.NetNS(), binary}, args...)...)
	cmd.Stderr = os.Stderr
	alive, err := cmd.StdinPipe() // ends when this process ends
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s.pid = cmd.Process.Pid // nsenter executes the program in its own process
	s.stop = append(s.stop, func() error {
		err := errors.Join(alive.Close(), cmd.Process.Signal(os.Interrupt))
		_ = cmd.Wait() // the error may be that of the signal
		return err
	})
	return nil
}

// decideByAgent makes an agent decide about every new connection with the given number of
// policies.
func (s *setup) decideByAgent(ctx context.Context, binary, dir string, policies int, args []string) error {
	manifests, err := lab.NewManifests(dir)
	if err != nil {
		return err
	}
	var objects []runtime.Object
	for _, object := range s.objects(policies) {
		objects = append(objects, object)
	}
	if err := manifests.Put("cluster", objects...); err != nil {
		return err
	}
	agent, err := s.node.StartAgent(lab.AgentConfig{Binary: binary, Manifests: manifests.Dir(), Args: args})
	if err != nil {
		return err
	}
	s.pid = agent.PID()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return agent.WaitReady(ctx)
}

// decideByOther uses an agent of kube-network-policies v1.1.1, which reads from an API
// server and does not report when it is ready. It needs the kernel's queue statement:
// without it the error wraps errors.ErrUnsupported.
func (s *setup) decideByOther(ctx context.Context, binary, dir string, policies int) error {
	if _, err := s.node.Run(ctx, hop("queue to 0"), "nft", "--check", "-f", "-"); err != nil {
		return fmt.Errorf("the kernel has no queue statement (CONFIG_NFT_QUEUE): %w", errors.ErrUnsupported)
	}
	api := apiserver.New()
	for _, object := range s.objects(policies) {
		if _, err := api.Put(object); err != nil {
			return err
		}
	}
	var url string
	err := load.Inside(s.node.NetNS(), func() error {
		web, err := api.Start()
		if err == nil {
			url = web.URL
			s.stop = append(s.stop, func() error { web.CloseClientConnections(); web.Close(); return nil })
		}
		return err
	})
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, fmt.Sprintf("kubeconfig-%d", policies))
	if err := apiserver.WriteKubeconfig(kubeconfig, url); err != nil {
		return err
	}
	// By default it accepts packets that do not fit into its queue.
	err = s.run(binary, "--kubeconfig="+kubeconfig, "--hostname-override="+s.node.Name, "--fail-open=false", "--disable-nri", "--v=0")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return lab.Poll(ctx, func() (bool, error) {
		rules, err := s.node.Run(ctx, "", "nft", "list", "ruleset")
		return strings.Contains(rules, s.client.Addr(lab.IPv4).String()), err
	})
}

// objects returns the cluster and the given number of policies that select the pods for
// egress. The last policy allows some destinations.
func (s *setup) objects(policies int) []apiserver.Object {
	namespace := s.client.Object.Namespace
	objects := []apiserver.Object{s.node.Object(), s.client.Object, s.floodPod.Object, lab.NewNamespace(namespace, nil)}
	all := cluster.Policies(namespace, policies-1)
	allow := cluster.Allowing(namespace, "")
	allow.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: allowed.String()}}}
	for _, policy := range append(all, allow) {
		objects = append(objects, towards(policy))
	}
	return objects
}

// towards turns a policy for ingress into one for egress to the same peers.
func towards(p *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	for _, rule := range p.Spec.Ingress {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{Ports: rule.Ports, To: rule.From})
	}
	p.Spec.Ingress = nil
	return p
}
