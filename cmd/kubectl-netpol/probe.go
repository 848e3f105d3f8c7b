package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/intent"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/cluster"
)

// probeOptions are the flags of real connections.
type probeOptions struct {
	enabled  bool
	image    string
	families []string
	settle   time.Duration

	// start starts the backend that makes the connections.
	start func(context.Context) (netpol.Backend, error)
}

func (p *probeOptions) addFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&p.enabled, "probe", false, "also make the connections, in the cluster of the kubeconfig: the namespaces and policies of the manifests are created there, with pods that stand in for those of the manifests, and deleted at the end. Needs -f; a namespace that exists already is an error")
	fs.StringVar(&p.image, "probe-image", "netpol-prober:v0.2.0", "image of these pods, with the program prober of kube-network-policies")
	fs.StringSliceVar(&p.families, "probe-families", []string{"IPv4"}, "address families of the cluster's pods: IPv4, IPv6 or both")
	fs.DurationVar(&p.settle, "probe-settle", 10*time.Second, "how long policies may take to be effective everywhere; the connections are made after that")
}

// startCluster starts the backend for the kubeconfig's cluster.
func (a *assertOptions) startCluster(ctx context.Context) (netpol.Backend, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	access, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.context}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	access.QPS, access.Burst = -1, 0 // no rate limit, because many objects are created
	cfg := cluster.Config{Image: a.probe.image}
	for _, family := range a.probe.families {
		f, err := parseFamily(family)
		if err != nil || f == reachability.FirstCommon {
			return nil, fmt.Errorf("--probe-families=%s: must be IPv4 or IPv6", family)
		}
		cfg.Families = append(cfg.Families, corev1.IPFamily(f))
	}
	return cluster.New(ctx, access, cfg)
}

// run makes the connections of the results and adds the outcomes.
func (p *probeOptions) run(ctx context.Context, in clusterstate.Input, results []intent.Result) (err error) {
	backend, err := p.start(ctx)
	if err != nil {
		return fmt.Errorf("--probe: %w", err)
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	plan := newProbePlan(backend.Supports(), results)
	if len(plan.expected) == 0 {
		return nil
	}
	outcomes, err := netpol.Runner{Backend: backend, Settle: p.settle}.Expect(ctx, plan.state(in, backend.Supports().Nodes), plan.expected)
	if err != nil {
		return fmt.Errorf("--probe: %w", err)
	}
	plan.report(results, outcomes)
	return nil
}

// probePlan is the set of connections to make.
type probePlan struct {
	expected []netpol.Expectation
	results  []int           // index of the result of each connection
	pods     map[string]bool // "namespace/name"
	ports    map[int32]bool
}

// newProbePlan chooses the connections that a backend can make, and records why it skips
// the others.
func newProbePlan(support netpol.Support, results []intent.Result) *probePlan {
	plan := &probePlan{pods: map[string]bool{}, ports: map[int32]bool{}}
	for i := range results {
		r := &results[i]
		r.Probed = &intent.Probed{}
		planned := map[[2]string]bool{} // once per pair: the manifests' families may not be the cluster's
		for _, pair := range r.Pairs {
			if why := cannotProbe(support, r, &pair); why != "" {
				r.Probed.Skipped = append(r.Probed.Skipped, why)
				continue
			}
			if ends := [2]string{pair.From.Name, pair.To.Name}; !planned[ends] {
				planned[ends] = true
				plan.add(support, i, r, &pair)
			}
		}
		slices.Sort(r.Probed.Skipped)
		r.Probed.Skipped = slices.Compact(r.Probed.Skipped)
	}
	return plan
}

func (plan *probePlan) add(support netpol.Support, i int, r *intent.Result, pair *intent.Pair) {
	for _, family := range support.Families {
		traffic := netpol.Traffic{Protocol: corev1.Protocol(r.Port.Proto.String()), Port: int32(pair.Port), Family: family}
		plan.expected = append(plan.expected, netpol.Expectation{
			Connection: netpol.Connection{From: pair.From.Name, To: pair.To.Name, Traffic: traffic}, Allowed: r.Allow,
		})
		plan.results = append(plan.results, i)
		r.Probed.Connections++
	}
	plan.pods[pair.From.Name], plan.pods[pair.To.Name] = true, true
	plan.ports[int32(pair.Port)] = true
}

// ofTheCluster are namespaces that every cluster has.
var ofTheCluster = []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}

// cannotProbe returns why a connection cannot be made, or "".
func cannotProbe(support netpol.Support, r *intent.Result, pair *intent.Pair) string {
	if pair.Family == reachability.FirstCommon {
		return fmt.Sprintf("%s cannot connect to %s at all", pair.From.Name, pair.To.Name)
	}
	if !r.Port.Proto.HasPorts() || r.Port.Proto == packet.SCTP || !slices.Contains(support.Protocols, corev1.Protocol(r.Port.Proto.String())) {
		return r.Port.Proto.String() + " is not tried"
	}
	for _, end := range []*reachability.Endpoint{pair.From, pair.To} {
		namespace, _, _ := strings.Cut(end.Name, "/")
		switch {
		case end.Kind == reachability.HostNetworkPod:
			return end.Name + " uses the network of its node"
		case end.Kind != reachability.Pod || !strings.Contains(end.Name, "/"):
			return end.Name + " is an address"
		case slices.Contains(ofTheCluster, namespace):
			return end.Name + " is in a namespace of the cluster's own"
		}
	}
	return ""
}

// state returns the plan's pods as in the manifests, with their namespaces and all policies
// for them.
func (plan *probePlan) state(in clusterstate.Input, nodes int) *netpol.State {
	state := &netpol.State{Ports: slices.Sorted(maps.Keys(plan.ports))}
	namespaces := map[string]bool{}
	for _, pod := range in.Pods {
		if !plan.pods[netpol.PodName(pod)] {
			continue
		}
		namespaces[pod.Namespace] = true
		node := fmt.Sprintf("node-%d", len(state.Pods)%max(1, nodes)+1)
		state.Pods = append(state.Pods, standIn(pod, node))
	}
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		state.Namespaces = append(state.Namespaces, netpol.NewNamespace(name))
	}
	for _, n := range in.Namespaces {
		for _, wanted := range state.Namespaces {
			if wanted.Name == n.Name {
				maps.Copy(wanted.Labels, n.Labels)
			}
		}
	}
	for _, p := range in.Policies {
		state.Apply(bare(p))
	}
	state.Policies = slices.DeleteFunc(state.Policies, func(p *networkingv1.NetworkPolicy) bool { return !namespaces[p.Namespace] })
	return state
}

// standIn returns a pod with the name, labels and declared ports of pod.
func standIn(pod *corev1.Pod, node string) *corev1.Pod {
	p := netpol.NewPod(pod.Namespace, pod.Name, node, nil)
	p.Labels = pod.Labels
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, c.Ports...)
	}
	return p
}

// bare returns a policy without the fields that an API server adds.
func bare(p compile.Object) compile.Object {
	p = p.DeepCopyObject().(compile.Object)
	p.SetUID("")
	p.SetResourceVersion("")
	p.SetOwnerReferences(nil)
	p.SetFinalizers(nil)
	p.SetManagedFields(nil)
	return p
}

// report adds unexpected outcomes to the results.
func (plan *probePlan) report(results []intent.Result, outcomes []netpol.Outcome) {
	for i, e := range plan.expected {
		r := &results[plan.results[i]]
		want := netpol.TimedOut
		if e.Allowed {
			want = netpol.Connected
		}
		if outcomes[i] != want {
			r.Probed.Failures = append(r.Probed.Failures, fmt.Sprintf("%v is %v in the cluster", e.Connection, outcomes[i]))
		}
	}
}
