package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

// The client is a pod of another node, in a namespace that all clusters have. Its label
// allows it.
const (
	clientName   = "client"
	clientNode   = "node-2"
	clientLabel  = "probe"
	labelOpen    = "open"
	labelClosed  = "closed"
	chosenSpace  = "chosen" // namespace of the pod that one policy selects or not
	chosenPolicy = "deny"
)

func (e *environment) clientPod(label string) *corev1.Pod {
	p := newPod(cluster.NamespaceName(1), clientName, "probes", clientNode, e.client.Addrs...)
	return relabelled(p, clientLabel, label)
}

// allowing returns the policy that allows pods of the client's namespace with a label to
// reach the server.
func allowing(label string) *networkingv1.NetworkPolicy {
	p := cluster.Allowing(cluster.NamespaceName(0), cluster.NamespaceName(1))
	p.Spec.Ingress[0].From[0].PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{clientLabel: label}}
	return p
}

// denying returns the policy that selects the other server or no pod, and allows nothing.
func denying(selects bool) *networkingv1.NetworkPolicy {
	p := cluster.Allowing(chosenSpace, "")
	p.Name, p.Spec.Ingress = chosenPolicy, nil
	if !selects {
		p.Spec.PodSelector.MatchLabels = map[string]string{"no": "such"}
	}
	return p
}

// put stores the objects of the probes, with the client allowed.
func (e *environment) put() error {
	for _, o := range []apiserver.Object{
		e.server.Object, e.chosen.Object, e.clientPod(labelOpen),
		lab.NewNamespace(chosenSpace, nil), denying(false), allowing(labelOpen),
	} {
		if _, err := e.api.Put(o); err != nil {
			return err
		}
	}
	return nil
}

// flip is a change after which the client is denied or allowed again.
type flip struct {
	name   string
	target *lab.Pod
	change func(open bool) (time.Time, error) // returns when the agent could see it
	// ends measures when an allowed flow ends, instead of when new flows are denied and
	// allowed.
	ends bool
}

// podFlips are changes of pods. policyFlips are changes of policies: of their rules and of
// their selectors.
func (e *environment) podFlips() []flip {
	return []flip{
		{name: "PodLabel", target: e.server, change: func(open bool) (time.Time, error) {
			if !open {
				return e.api.Put(e.clientPod(labelClosed))
			}
			return e.api.Put(e.clientPod(labelOpen))
		}},
		{name: "PodAdd", target: e.server, change: func(open bool) (time.Time, error) {
			if !open {
				return e.api.Delete(e.clientPod(labelOpen))
			}
			return e.api.Put(e.clientPod(labelOpen))
		}},
	}
}

func (e *environment) policyFlips() []flip {
	return []flip{
		{name: "PolicyRules", target: e.server, change: func(open bool) (time.Time, error) {
			if !open {
				return e.api.Put(allowing("none"))
			}
			return e.api.Put(allowing(labelOpen))
		}},
		{name: "PolicySelection", target: e.chosen, change: func(open bool) (time.Time, error) {
			return e.api.Put(denying(!open))
		}},
	}
}

// revocations are changes that end a flow.
func (e *environment) revocations() []flip {
	var all []flip
	for _, f := range e.policyFlips() {
		f.name, f.ends = "Revoked"+f.name, true
		all = append(all, f)
	}
	return all
}

// latencies are those of one kind of change.
type latencies []time.Duration

// quantile returns the latency that the given percentage does not exceed.
func (l latencies) quantile(percent int) time.Duration {
	sorted := slices.Sorted(slices.Values(l))
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

// measure makes count changes, each after the previous one took effect, and returns how
// long each took.
func (e *environment) measure(ctx context.Context, f flip, count int) (latencies, error) {
	p, err := newProber(e.client.NetNS(), f.target.NetNS(), netip.AddrPortFrom(f.target.Addr(lab.IPv4), firstPort+e.probers), f.ports())
	e.probers++
	if err != nil {
		return nil, err
	}
	defer p.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.send(ctx) })
	group.Go(func() error { return p.receive(ctx) })
	var all latencies
	group.Go(func() (err error) {
		defer cancel()
		all, err = p.flips(ctx, f, count)
		return err
	})
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("%s: %w", f.name, err)
	}
	return all, nil
}

// ports returns the number of source ports of probes.
func (f flip) ports() int {
	if f.ends {
		return 1
	}
	return sourcePorts
}

func (p *prober) flips(ctx context.Context, f flip, count int) (all latencies, err error) {
	if _, err := p.verdict(ctx, true, time.Now()); err != nil {
		return nil, err
	}
	for i := range count {
		time.Sleep(rand.N(2 * patience)) // at a random moment of the agent's intervals
		open := i%2 == 1
		changed, err := f.change(open)
		if err != nil {
			return nil, err
		}
		latency, err := p.verdict(ctx, open, changed)
		if err != nil {
			return nil, err
		}
		if !open || !f.ends {
			all = append(all, latency)
		}
	}
	return all, nil
}
