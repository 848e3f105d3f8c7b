package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
	"sigs.k8s.io/kube-network-policies/tests/cluster/conformance/cluster"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/packets/backend"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// programTimeout is how long a change may take to come into force.
const programTimeout = time.Minute

// patience is how long an attempt that should succeed may be without an answer: as long as a
// busy machine may take.
const patience = 20 * time.Second

// packets is a network of network namespaces with real agents.
type packets struct {
	*backend.Backend
	expected *evaluated // what answers are waited for longer

	mu      sync.RWMutex
	objects cluster.Objects // that are in force
}

func newPackets(ctx context.Context, agent string, args ...string) (network, error) {
	if agent == "" {
		return nil, errors.New("-agent is missing: it is the path of the agent's binary")
	}
	network, err := backend.Start(ctx, agent, args...)
	if err != nil {
		return nil, err
	}
	return &packets{Backend: network, expected: &evaluated{evaluator: byOracle, nodes: network.Nodes()}}, nil
}

// Apply implements cluster.Network.
func (p *packets) Apply(ctx context.Context, objects cluster.Objects) error {
	nodes := objects.Nodes
	objects.Nodes = nil // which the backend has
	if equality.Semantic.DeepEqual(objects, p.inForce()) {
		return nil
	}
	concerned := p.concernedBy(objects)
	before, err := p.InForce(ctx)
	if err != nil {
		return err
	}
	state, err := stateOf(objects)
	if err != nil {
		return err
	}
	if err := p.Backend.Apply(ctx, state); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	err = lab.Poll(ctx, func() (bool, error) {
		now, err := p.InForce(ctx)
		for i := range now {
			if concerned[i] && !now[i].Since(before[i]) {
				return false, nil
			}
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("wait for a change to come into force: %w; agents:\n%s", err, p.Logs())
	}
	p.mu.Lock()
	p.objects = objects
	p.mu.Unlock()
	objects.Nodes = nodes
	return p.expected.Apply(ctx, objects)
}

// concernedBy returns for each node whether its agent has something to program once objects
// replace those that are in force. No verdict depends on a pod that has the network of another
// node.
func (p *packets) concernedBy(objects cluster.Objects) []bool {
	var concerned []bool
	for _, node := range p.Nodes() {
		known := func(o cluster.Objects) cluster.Objects {
			o.Pods = slices.DeleteFunc(slices.Clone(o.Pods), func(pod *corev1.Pod) bool {
				return pod.Spec.HostNetwork && pod.Spec.NodeName != node.Name
			})
			return o
		}
		concerned = append(concerned, !equality.Semantic.DeepEqual(known(objects), known(p.inForce())))
	}
	return concerned
}

func (p *packets) inForce() cluster.Objects {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.objects
}

// stateOf returns objects as the backend wants them. All pods and nodes answer on
// all ports that one of them serves.
func stateOf(objects cluster.Objects) (*netpol.State, error) {
	state := &netpol.State{
		Namespaces: objects.Namespaces,
		Pods:       slices.Clone(objects.Pods), // the backend replaces some
	}
	for _, o := range objects.Policies {
		p, err := published(o)
		if err != nil {
			return nil, err
		}
		state.Apply(p)
	}
	for _, pod := range objects.Pods {
		for _, port := range cluster.Serving(pod) {
			state.Ports = append(state.Ports, port.ContainerPort)
		}
	}
	return state, nil
}

// published returns a policy in a type that modules other than the agent's know: the type with
// the fields of proposals is the agent's own.
func published(o compile.Object) (netpol.Policy, error) {
	p, ok := o.(*proposed.ClusterNetworkPolicy)
	if !ok {
		return o, nil
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
	if err != nil {
		return nil, fmt.Errorf("ClusterNetworkPolicy %s: %w", p.Name, err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(schema.GroupVersion(v1beta1.GroupVersion).WithKind("ClusterNetworkPolicy"))
	return u, nil
}

// Connect implements cluster.Network. What should be denied has the attempt's timeout. The suites
// want that a denied connection is dropped, so agents that reject pass only if a refusal counts as
// a drop.
func (p *packets) Connect(ctx context.Context, a cluster.Attempt) (netpol.Outcome, error) {
	to := p.owner(a.To.Addr())
	if to == "" {
		return netpol.Unobservable, fmt.Errorf("no pod is at %s", a.To.Addr())
	}
	family := corev1.IPv6Protocol
	if a.To.Addr().Is4() {
		family = corev1.IPv4Protocol
	}
	silence := a.Timeout
	if expected, err := p.expected.Connect(ctx, a); err == nil && expected == netpol.Connected {
		silence = max(silence, patience)
	}
	outcomes, err := p.Probe(ctx, []netpol.Connection{{
		From: a.From, To: to, Silence: silence,
		Traffic: netpol.Traffic{Protocol: a.Protocol, Port: int32(a.To.Port()), Family: family},
	}})
	if err != nil {
		return netpol.Unobservable, err
	}
	if outcomes[0] == netpol.Refused && !slices.Contains(p.Supports().Features, netpol.SilentDrops) {
		return netpol.TimedOut, nil
	}
	return outcomes[0], nil
}

// owner returns the pod that has an address.
func (p *packets) owner(addr netip.Addr) string {
	for _, pod := range p.inForce().Pods {
		for _, own := range compile.Addresses(pod) {
			if own == addr {
				return netpol.PodName(pod)
			}
		}
	}
	return ""
}
