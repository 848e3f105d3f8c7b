package suggest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// gen generates random clusters with two nodes and two namespaces, and flows between their
// pods, nodes and two external addresses. Suggestions are for namespace x.
type gen struct{ *random.Gen }

func newGen(seed uint64) gen {
	return gen{&random.Gen{Rand: rand.New(rand.NewPCG(seed, 17)), Namespaces: []string{"x", "y"}, CIDRs: random.CIDRs, Rules: 2}}
}

func (g gen) cluster() clusterstate.Input {
	in := clusterstate.Input{Features: compile.AllFeatures()}
	for i, node := range []string{"n1", "n2"} {
		in.Nodes = append(in.Nodes, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.%d.0.0/24", i+1)}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.0.%d", i+1)}}},
		})
	}
	for n, name := range g.Namespaces {
		ns := g.Namespace(name)
		if ns.Labels == nil {
			ns.Labels = map[string]string{}
		}
		ns.Labels[corev1.LabelMetadataName] = name
		g.Enforcement(ns)
		in.Namespaces = append(in.Namespaces, ns)
		for i := range 2 + g.IntN(3) {
			in.Pods = append(in.Pods, g.pod(name, i, 2+i+16*n))
		}
	}
	for i := range g.IntN(5) {
		p := g.NetworkPolicy(random.Pick(g, g.Namespaces...), fmt.Sprintf("np%d", i))
		g.Enforcement(p)
		in.Policies = append(in.Policies, p)
	}
	if g.OneIn(4) {
		p := g.AdminNetworkPolicy("anp")
		g.Enforcement(p)
		in.Policies = append(in.Policies, p)
	}
	return in
}

func (g gen) pod(namespace string, i, host int) *corev1.Pod {
	pod := g.Pod(namespace, fmt.Sprintf("p%d", i))
	pod.Spec.HostNetwork = false
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels["pod-template-hash"] = fmt.Sprint("h", i)
	pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.%s.0.%d", pod.Spec.NodeName[1:], host)}}
	if g.OneIn(3) {
		controller := true
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: workloads.StatefulSet, Name: random.Pick(g, "s", "t"), Controller: &controller}}
	}
	return pod
}

var external = []string{"203.0.113.9", "198.51.100.1"}

// flows returns records of random flows with at least one end in x.
func (g gen) flows(in clusterstate.Input) []flows.Record {
	end := func() *flows.End {
		switch g.IntN(6) {
		case 0:
			return &flows.End{Address: netip.MustParseAddr(random.Pick(g, external...))}
		case 1:
			return &flows.End{Address: netip.MustParseAddr(random.Pick(g, "192.168.0.1", "192.168.0.2"))}
		}
		pod := random.Pick(g, in.Pods...)
		return &flows.End{Namespace: pod.Namespace, Pod: pod.Name, Address: compile.Addresses(pod)[0]}
	}
	var records []flows.Record
	for range g.IntN(8) {
		r := flows.Record{Type: flows.TypeFlow, Node: "n1", Source: end(), Destination: end(), Protocol: random.Pick(g, "TCP", "TCP", "UDP"), Count: 1}
		r.Port = random.Pick[uint16](g, 80, 81, 53, 8080)
		r.Verdict, r.First, r.Last = flows.Allow, &time.Time{}, &time.Time{}
		if r.Source.Namespace == "x" || r.Destination.Namespace == "x" {
			records = append(records, r)
		}
	}
	return records
}

// world has the facts with which the properties check a suggestion.
type world struct {
	in      clusterstate.Input
	records []flows.Record
}

// common returns the labels that all pods of a workload have and that a selector can name.
func (w *world) common(pod *corev1.Pod) map[string]string {
	common := maps.Clone(pod.Labels)
	delete(common, "pod-template-hash")
	for _, other := range w.in.Pods {
		if workloads.Of(other) == workloads.Of(pod) {
			maps.DeleteFunc(common, func(k, v string) bool { o, has := other.Labels[k]; return !has || o != v || v == "x!" })
		}
	}
	return common
}

func (w *world) pod(e *flows.End) *corev1.Pod {
	i := slices.IndexFunc(w.in.Pods, func(p *corev1.Pod) bool { return p.Namespace == e.Namespace && p.Name == e.Pod })
	if i < 0 {
		return nil
	}
	return w.in.Pods[i]
}

// matches reports whether labels cannot distinguish an endpoint from the recorded end.
func (w *world) matches(endpoint string, recorded *flows.End) bool {
	pod := w.pod(recorded)
	if pod == nil {
		return endpoint == recorded.Address.String()
	}
	namespace, name, _ := strings.Cut(endpoint, "/")
	other := w.pod(&flows.End{Namespace: namespace, Pod: name})
	if other == nil || namespace != pod.Namespace {
		return false
	}
	for k, v := range w.common(pod) {
		if o, has := other.Labels[k]; !has || o != v {
			return false
		}
	}
	return true
}

// selectable reports whether some label selects the recorded end.
func (w *world) selectable(e *flows.End) bool {
	pod := w.pod(e)
	return pod == nil || len(w.common(pod)) > 0
}

func nameOfEnd(e *flows.End) string {
	if e.Pod == "" {
		return e.Address.String()
	}
	return e.Namespace + "/" + e.Pod
}

func portOf(r *flows.Record) reachability.Port {
	proto := packet.TCP
	if r.Protocol == "UDP" {
		proto = packet.UDP
	}
	return reachability.Port{Proto: proto, Number: r.Port}
}

func endpoint(t *testing.T, c *reachability.Cluster, name string) *reachability.Endpoint {
	t.Helper()
	e, err := c.Endpoint(name)
	if err != nil {
		t.Fatal(err)
	}
	return &e
}

// whole returns the cluster with all policies enforced and p added.
func whole(in clusterstate.Input, p *networkingv1.NetworkPolicy) *reachability.Cluster {
	if p != nil {
		in = apply(in, []*networkingv1.NetworkPolicy{p})
	}
	c := reachability.New(in)
	if enforced := c.IfEnforced(); enforced != nil {
		return enforced
	}
	return c
}

// rest returns an enforced policy for all pods of x that allows everything or nothing.
func rest(open bool) *networkingv1.NetworkPolicy {
	p := annotated(denyAll("x", networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress), compile.EnforceValue)
	p.Name = "rest"
	if open {
		p.Spec.Ingress, p.Spec.Egress = make([]networkingv1.NetworkPolicyIngressRule, 1), make([]networkingv1.NetworkPolicyEgressRule, 1)
	}
	return p
}

// TestRecordedFlowsPassAndOthersDoNot: in random clusters with random policies, the
// suggestion allows every recorded flow that some policy can allow. Everything that it
// allows beyond the other policies was recorded, or has labels that cannot be distinguished
// from a recorded flow's.
func TestRecordedFlowsPassAndOthersDoNot(t *testing.T) {
	passed, denied := 0, 0
	for seed := range uint64(1500) {
		g := newGen(seed)
		w := &world{in: g.cluster()}
		w.records = g.flows(w.in)
		if len(w.records) == 0 {
			continue
		}
		s, err := Make(Input{Cluster: w.in, Namespace: "x", Records: w.records})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		after := whole(s.Apply(w.in), nil)
		open, shut := whole(w.in, rest(true)), whole(w.in, rest(false))
		for i := range w.records {
			r := &w.records[i]
			src, dst := endpoint(t, after, nameOfEnd(r.Source)), endpoint(t, after, nameOfEnd(r.Destination))
			possible := w.selectable(r.Source) && w.selectable(r.Destination) && open.Evaluate(src, dst, portOf(r), "").Allowed &&
				reachability.New(apply(w.in, []*networkingv1.NetworkPolicy{rest(true)})).Evaluate(src, dst, portOf(r), "").Allowed
			switch allowed := after.Evaluate(src, dst, portOf(r), "").Allowed; {
			case allowed:
				passed++
			case possible:
				t.Errorf("%s -> %s %s is denied", src.Name, dst.Name, portOf(r))
			}
		}
		names := append(slices.Clone(external), "192.168.0.1", "192.168.0.2")
		for _, p := range w.in.Pods {
			names = append(names, p.Namespace+"/"+p.Name)
		}
		for _, from := range names {
			for _, to := range names {
				for _, port := range []reachability.Port{{Proto: packet.TCP, Number: 80}, {Proto: packet.TCP, Number: 53}, {Proto: packet.UDP, Number: 8080}, {Proto: packet.TCP, Number: 9}} {
					for d, subject := range map[policy.Direction]string{policy.Egress: from, policy.Ingress: to} {
						if !strings.HasPrefix(subject, "x/") {
							continue
						}
						src, dst := endpoint(t, after, from), endpoint(t, after, to)
						if shut.AllowedIn(d, src, dst, port, "") {
							continue
						}
						recorded := slices.ContainsFunc(w.records, func(r flows.Record) bool {
							return portOf(&r) == port && w.matches(from, r.Source) && w.matches(to, r.Destination)
						})
						switch {
						case recorded:
						case after.AllowedIn(d, src, dst, port, ""):
							t.Errorf("%v of %s -> %s %s is allowed and not recorded", d, from, to, port)
						default:
							denied++
						}
					}
				}
			}
		}
		if t.Failed() {
			text, _ := s.YAML()
			t.Fatalf("seed %d\n%s", seed, text)
		}
	}
	if passed < 1500 || denied < 100000 {
		t.Errorf("only %d recorded flows passed, and only %d unrecorded flows were denied", passed, denied)
	}
}

// TestASuggestionThatIsAppliedStaysTheSame: with the suggestion applied, the same records
// give the same suggestion while it is audited, and none once it is enforced.
func TestASuggestionThatIsAppliedStaysTheSame(t *testing.T) {
	compared := 0
	for seed := range uint64(300) {
		g := newGen(seed)
		in := Input{Cluster: g.cluster(), Namespace: "x"}
		in.Records = g.flows(in.Cluster)
		first, err := Make(in)
		if err != nil {
			continue // no flows
		}
		want, err := first.YAML()
		if err != nil {
			t.Fatal(err)
		}
		var audited []*networkingv1.NetworkPolicy
		for _, p := range first.Policies {
			audited = append(audited, p.NetworkPolicy)
		}
		applied := in
		applied.Cluster = apply(in.Cluster, audited)
		second, err := Make(applied)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got, err := second.YAML(); got != want || err != nil {
			t.Fatalf("seed %d: %v, first\n%s\nand then\n%s", seed, err, want, got)
		}
		applied.Cluster = first.Apply(in.Cluster)
		third, err := Make(applied)
		if err != nil || len(third.Policies) > 0 {
			t.Fatalf("seed %d: %v, after\n%s\nstill %v", seed, err, want, third.Policies)
		}
		compared++
	}
	if compared < 150 {
		t.Errorf("only %d clusters were compared", compared)
	}
}
