package backend

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// Peer is another provider of NetworkPolicy, whose agents read the state from an API server.
type Peer struct {
	// Program is the agent, found in PATH. Without one nothing enforces policies.
	Program string
	// Flags are those of the agent of a node.
	Flags func(node, kubeconfig string) []string
}

// Peers are those that this backend can run, by name.
var Peers = map[string]Peer{
	"none": {},
	"upstream": {Program: "kube-network-policies-v1.1.1", Flags: func(node, kubeconfig string) []string {
		// Those of its install.yaml. NRI needs a container runtime.
		return []string{"--kubeconfig=" + kubeconfig, "--hostname-override=" + node, "--nfqueue-id=98", "--disable-nri"}
	}},
	"kube-router": {Program: "kube-router", Flags: func(node, kubeconfig string) []string {
		return []string{"--kubeconfig=" + kubeconfig, "--hostname-override=" + node, "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/64",
			"--enable-ipv6", "--run-firewall=true", "--run-router=false", "--run-service-proxy=false"}
	}},
}

// apiAddress is where the agent of a node reaches the API server.
var apiAddress = netip.MustParseAddrPort("127.0.0.1:6443")

// StartPeer builds the nodes and starts the peer's agent on each.
func StartPeer(ctx context.Context, peer Peer) (_ *Backend, err error) {
	b := &Backend{peers: &peers{api: apiserver.New()}}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	if err = b.build(ctx); err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(b.folder, "kubeconfig")
	if err := apiserver.WriteKubeconfig(kubeconfig, "http://"+apiAddress.String()); err != nil {
		return nil, err
	}
	if err := b.write(&netpol.State{}); err != nil || peer.Program == "" {
		return b, err
	}
	for _, node := range b.lab.Nodes {
		listener, err := node.Listen(apiAddress)
		if err != nil {
			return nil, err
		}
		go http.Serve(listener, b.peers.api) // until the node is closed
		process, err := node.Start(peer.Program, peer.Flags(node.Name, kubeconfig)...)
		if err != nil {
			return nil, err
		}
		b.peers.processes = append(b.peers.processes, process)
	}
	return b, nil
}

// peers are the agents of a peer and the API server that they read.
type peers struct {
	api       *apiserver.Server
	known     map[string]apiserver.Object // what the API server has, by kind and name
	processes []*lab.Process
}

// running returns an error if an agent has ended, as no result would be one of it.
func (p *peers) running() error {
	for _, process := range p.processes {
		select {
		case <-process.Ended():
			return fmt.Errorf("an agent has ended:\n%s", process.Log())
		default:
		}
	}
	return nil
}

func (p *peers) stop() {
	for _, process := range p.processes {
		process.Stop(syscall.SIGKILL)
	}
}

// publish makes the API server serve the state. Objects that have not changed are not sent again.
func (b *Backend) publish(state *netpol.State) error {
	objects, err := b.objects(state)
	if err != nil {
		return err
	}
	p := b.peers
	for key, object := range objects {
		if p.known[key] == object {
			continue
		}
		if _, err := p.api.Put(b.completed(object)); err != nil {
			return err
		}
	}
	for key, object := range p.known {
		if objects[key] != nil {
			continue
		}
		if _, err := p.api.Delete(b.completed(object)); err != nil {
			return err
		}
	}
	p.known = objects
	return p.running()
}

// objects returns the nodes and what the state has, by kind and name.
func (b *Backend) objects(state *netpol.State) (map[string]apiserver.Object, error) {
	objects := map[string]apiserver.Object{}
	for _, node := range b.lab.Nodes {
		key := "node/" + node.Name
		objects[key] = b.peers.known[key]
		if objects[key] == nil {
			objects[key] = node.Object()
		}
	}
	for _, namespace := range state.Namespaces {
		objects["namespace/"+namespace.Name] = namespace
	}
	for _, pod := range state.Pods {
		objects["pod/"+netpol.PodName(pod)] = pod
	}
	for _, policy := range state.Policies {
		objects["policy/"+policy.Namespace+"/"+policy.Name] = policy
	}
	if all := state.AllPolicies(); len(all) > len(state.Policies) {
		return nil, fmt.Errorf("%w: only NetworkPolicy is served", netpol.ErrRefused)
	}
	return objects, nil
}

// completed returns a copy of an object with what an API server and a kubelet add to it.
func (b *Backend) completed(object apiserver.Object) apiserver.Object {
	switch o := object.DeepCopyObject().(type) {
	case *networkingv1.NetworkPolicy:
		completePolicy(&o.Spec)
		return o
	case *corev1.Pod:
		if node := b.lab.Node(o.Spec.NodeName); node != nil && o.Status.PodIP != "" {
			o.Status.HostIP = node.Addrs[0].String()
		}
		for _, containers := range [][]corev1.Container{o.Spec.InitContainers, o.Spec.Containers} {
			for _, container := range containers {
				for i, port := range container.Ports {
					container.Ports[i].Protocol = cmp.Or(port.Protocol, corev1.ProtocolTCP)
				}
			}
		}
		return o
	case apiserver.Object:
		return o
	}
	return nil
}

func completePolicy(spec *networkingv1.NetworkPolicySpec) {
	if len(spec.PolicyTypes) == 0 {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(spec.Egress) > 0 {
			spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	for _, rule := range spec.Ingress {
		completePorts(rule.Ports)
	}
	for _, rule := range spec.Egress {
		completePorts(rule.Ports)
	}
}

func completePorts(ports []networkingv1.NetworkPolicyPort) {
	for i := range ports {
		if ports[i].Protocol == nil {
			tcp := corev1.ProtocolTCP
			ports[i].Protocol = &tcp
		}
	}
}
