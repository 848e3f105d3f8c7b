package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/intent"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/tests/model/simulated"
	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// testCluster is a cluster in this process that may lack features.
type testCluster struct {
	netpol.Backend
	applied []*netpol.State
	closed  int
	// disobeys makes it enforce no policy.
	disobeys bool
	probeErr error
}

func newTestCluster() *testCluster {
	return &testCluster{Backend: simulated.New(simulated.Compiled)}
}

// Supports returns what a live cluster supports.
func (c *testCluster) Supports() netpol.Support {
	s := c.Backend.Supports()
	s.Protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}
	s.Families = []corev1.IPFamily{corev1.IPv4Protocol}
	return s
}

func (c *testCluster) Apply(ctx context.Context, state *netpol.State) error {
	if c.disobeys {
		state.Policies = nil
	}
	err := c.Backend.Apply(ctx, state)
	c.applied = append(c.applied, state.Clone())
	return err
}

func (c *testCluster) Probe(ctx context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	if c.probeErr != nil {
		return nil, c.probeErr
	}
	return c.Backend.Probe(ctx, connections)
}

func (c *testCluster) Close() error {
	c.closed++
	return c.Backend.Close()
}

// assertOn evaluates expectations about testdata/shop and makes the connections in a
// cluster.
func assertOn(t *testing.T, c *testCluster, output, text string) (stdout string, err error) {
	t.Helper()
	t.Chdir("testdata")
	o := &options{}
	cmd := newAssertWith(o, func(context.Context) (netpol.Backend, error) { return c, nil })
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	o.addFlags(cmd.PersistentFlags())
	var out strings.Builder
	cmd.SetArgs([]string{"-", "-f", "shop", "--probe", "--probe-settle=1ns", "-o", output})
	cmd.SetIn(strings.NewReader(text))
	cmd.SetOut(&out)
	err = cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestProbeAgreesWithTheEvaluator(t *testing.T) {
	c := newTestCluster()
	stdout, err := assertOn(t, c, "text", expectations(holds, "from: shop/web, to: shop/db, port: 5432, expect: deny", "from: shop/web, to: shop/api, port: http, expect: allow"))
	if err != nil || !strings.HasSuffix(stdout, "\n3 expectations about 3 connections and 3 real connections: all hold\n") {
		t.Errorf("got %v\n%s", err, stdout)
	}
	if len(c.applied) != 2 || c.closed != 1 {
		t.Fatalf("applied %d times, closed %d times", len(c.applied), c.closed)
	}
	first, last := c.applied[0], c.applied[1]
	if len(first.Policies) != 0 || len(last.Policies) != 4 || len(last.Pods) != 3 || len(last.Namespaces) != 1 || !slices.Equal(last.Ports, []int32{5432, 8000}) {
		t.Errorf("got %d policies, then %d, %d pods, %d namespaces, ports %v", len(first.Policies), len(last.Policies), len(last.Pods), len(last.Namespaces), last.Ports)
	}
	if n := last.Namespaces[0]; n.Labels["team"] != "shop" || n.Labels[corev1.LabelMetadataName] != "shop" {
		t.Errorf("the namespace has %v", n.Labels)
	}
	if p := last.Pod("shop/web"); p.Labels["app"] != "web" || p.Spec.Containers[0].Ports[0].Name != "http" || p.Spec.NodeName == last.Pod("shop/db").Spec.NodeName {
		t.Errorf("got %+v on %s", p.ObjectMeta, p.Spec.NodeName)
	}
}

// A provider that does not enforce policies as they are evaluated is found.
func TestProbeFindsWhatTheClusterDoesNotEnforce(t *testing.T) {
	c := newTestCluster()
	c.disobeys = true
	stdout, err := assertOn(t, c, "text", expectations(holds, "from: shop/web, to: shop/db, port: 5432, expect: deny, why: the API only"))
	want := "FAIL  shop/web -> shop/db, TCP 5432: denied\n      -:5\n      why: the API only\n" +
		"      shop/web -> shop/db TCP 5432 IPv4 is connected in the cluster\n" +
		"2 expectations about 2 connections and 2 real connections: 1 does not hold\n"
	if !errors.Is(err, errNo) || !strings.HasSuffix(stdout, want) {
		t.Errorf("got %v\n%s\nwant\n%s", err, stdout, want)
	}
}

// The answer says what could not be probed.
func TestProbeReportsWhatItDoesNotTry(t *testing.T) {
	c := newTestCluster()
	stdout, err := assertOn(t, c, "json", expectations("from: 203.0.113.9, to: shop/web, port: http, expect: allow", holds,
		"from: {namespace: monitoring}, to: shop/web, protocol: ICMP, expect: deny"))
	if !strings.Contains(stdout, `"203.0.113.9 is an address"`) || !strings.Contains(stdout, `"ICMP is not tried"`) || strings.Count(stdout, `"skipped"`) != 2 {
		t.Errorf("got %v\n%s", err, stdout)
	}
	if len(c.applied[1].Pods) != 2 {
		t.Errorf("%d pods", len(c.applied[1].Pods))
	}
}

func TestProbeErrors(t *testing.T) {
	c := newTestCluster()
	c.probeErr = errors.New("pods/exec is forbidden")
	if stdout, err := assertOn(t, c, "text", expectations(holds)); err == nil || !strings.Contains(err.Error(), "--probe: probe: pods/exec is forbidden") || c.closed != 1 || stdout != "" {
		t.Errorf("got %v after %d closes\n%s", err, c.closed, stdout)
	}
}

func TestProbeFlags(t *testing.T) {
	t.Chdir("testdata")
	for _, tc := range []struct{ name, command, stderr string }{
		{"without manifests", "assert intent.yaml --probe", "--probe needs manifests (-f)"},
		{"a family", "assert intent.yaml --probe -f shop --context shop --probe-families IPv5", "--probe-families=IPv5: must be IPv4 or IPv6"},
		{"no family", "assert intent.yaml --probe -f shop --context shop --probe-families=", "Families is empty"},
		{"no rights", "assert intent.yaml --probe -f shop --context shop", "--probe: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			command := tc.command + " --kubeconfig " + kubeconfig(t, server(t, except("nodes"), "shop").URL)
			if code, stdout, stderr := call(t, "", command); code != 2 || stdout != "" || !strings.Contains(stderr, tc.stderr) {
				t.Errorf("got %d\n%s%s", code, stdout, stderr)
			}
		})
	}
}

func TestWhatCannotBeProbed(t *testing.T) {
	pod := func(name string) *reachability.Endpoint {
		return &reachability.Endpoint{Name: name, Kind: reachability.Pod}
	}
	tcp := reachability.Port{Proto: packet.TCP, Number: 80}
	for _, c := range []struct {
		name string
		port reachability.Port
		pair intent.Pair
		want string
	}{
		{"pods", tcp, intent.Pair{From: pod("a/b"), To: pod("a/c"), Family: reachability.IPv4}, ""},
		{"IPv6 in the manifests", tcp, intent.Pair{From: pod("a/b"), To: pod("a/c"), Family: reachability.IPv6}, ""},
		{"no common family", tcp, intent.Pair{From: pod("a/b"), To: pod("a/c")}, "a/b cannot connect to a/c at all"},
		{"SCTP", reachability.Port{Proto: packet.SCTP, Number: 80}, intent.Pair{From: pod("a/b"), To: pod("a/c"), Family: reachability.IPv4}, "SCTP is not tried"},
		{"an address of a pod", tcp, intent.Pair{From: pod("10.0.0.1"), To: pod("a/c"), Family: reachability.IPv4}, "10.0.0.1 is an address"},
		{"a node", tcp, intent.Pair{From: pod("a/b"), To: &reachability.Endpoint{Name: "10.0.0.1", Kind: reachability.Node}, Family: reachability.IPv4}, "10.0.0.1 is an address"},
		{"the node's network", tcp, intent.Pair{From: &reachability.Endpoint{Name: "a/h", Kind: reachability.HostNetworkPod}, To: pod("a/c"), Family: reachability.IPv4}, "a/h uses the network of its node"},
		{"the cluster's namespace", tcp, intent.Pair{From: pod("a/b"), To: pod("kube-system/dns"), Family: reachability.IPv4}, "kube-system/dns is in a namespace of the cluster's own"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &intent.Result{Expectation: &intent.Expectation{Port: c.port}}
			if got := cannotProbe(newTestCluster().Supports(), r, &c.pair); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
