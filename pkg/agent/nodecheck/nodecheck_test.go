package nodecheck

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/mdlayher/netlink"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

// fake is a node whose state a test can replace.
type fake struct{ atomic.Pointer[State] }

func newFake(problems ...Problem) *fake {
	f := &fake{}
	f.Store(&State{Problems: problems})
	return f
}

func (f *fake) State() State { return *f.Load() }

func TestState(t *testing.T) {
	sysctls := func(ipv4, ipv6 string) map[string]string {
		return map[string]string{bridgeIPv4: ipv4, bridgeIPv6: ipv6}
	}
	for name, test := range map[string]struct {
		find func(*State)
		want []Problem
	}{
		"routed pods need no bridge":  {find: func(s *State) { s.addSysctls(nil, false) }},
		"bridge with its sysctls":     {find: func(s *State) { s.addSysctls(sysctls("1", "1"), true) }},
		"bridge without br_netfilter": {func(s *State) { s.addSysctls(nil, true) }, []Problem{{BridgeNetfilter, "no br_netfilter"}}},
		"bridge without IPv4":         {func(s *State) { s.addSysctls(sysctls("0", "1"), true) }, []Problem{{BridgeNetfilter, bridgeIPv4 + "=0"}}},
		"bridge without both": {func(s *State) { s.addSysctls(sysctls("0", "0"), true) },
			[]Problem{{BridgeNetfilter, bridgeIPv4 + "=0"}, {BridgeNetfilter, bridgeIPv6 + "=0"}}},
		"sysctls without a bridge": {find: func(s *State) { s.addSysctls(sysctls("0", "0"), false) }},
		"helpers by port":          {func(s *State) { s.addSysctls(map[string]string{helpersByPort: "1"}, false) }, []Problem{{Helper, helpersByPort + "=1"}}},
		"no helpers by port":       {find: func(s *State) { s.addSysctls(map[string]string{helpersByPort: "0"}, false) }},
		"Cilium":                   {func(s *State) { s.addInterface("cilium_host") }, []Problem{{DataPlane, "interface cilium_host of Cilium"}}},
		"interfaces of pods":       {find: func(s *State) { s.addInterface("veth1"); s.addInterface("cni0") }},
		"Calico": {func(s *State) {
			s.addChain("ip", "filter", "cali-FORWARD", false)
			s.addChain("ip6", "filter", "cali-INPUT", false)
		},
			[]Problem{{PolicyEngine, "cali-* of Calico"}}},
		"kindnetd": {func(s *State) { s.addChain("inet", "kindnet-network-policies", "postrouting", false) }, []Problem{{PolicyEngine, "kindnet-network-policies* of kindnetd"}}},
		"upstream": {func(s *State) { s.addChain("inet", "kube-network-policies", "postrouting", false) }, []Problem{{PolicyEngine, "kube-network-policies* of the upstream agent"}}},
		"kube-proxy and ourself": {find: func(s *State) {
			s.addChain("inet", "netpol-agent", "divert", false)
			s.addChain("ip", "kube-proxy", "services", false)
		}},
		"Docker": {func(s *State) { s.addChain("ip", "filter", "FORWARD", true) }, []Problem{{Firewall, "ip filter FORWARD"}}},
	} {
		t.Run(name, func(t *testing.T) {
			var s State
			test.find(&s)
			if !slices.Equal(s.Problems, test.want) {
				t.Errorf("got %q, want %q", s.Problems, test.want)
			}
		})
	}
}

// A node can have tens of thousands of chains. Those of one cause leave room for other causes.
func TestProblemsAreBounded(t *testing.T) {
	var s State
	for i := range 2 * maxProblems {
		s.addChain("ip", "filter", fmt.Sprint(i), true)
	}
	s.addInterface("ovn0")
	if len(s.Problems) != maxProblems+1 {
		t.Errorf("%d problems, want %d of chains and one of an interface", len(s.Problems), maxProblems)
	}
}

const exported = `# HELP netpol_node_problems What on this node may keep policies from being enforced, or enforces policies too, by cause.
# TYPE netpol_node_problems gauge
netpol_node_problems{cause="addresses"} 0
netpol_node_problems{cause="bridge_netfilter"} %d
netpol_node_problems{cause="data_plane"} 0
netpol_node_problems{cause="firewall"} 0
netpol_node_problems{cause="flowtable"} %d
netpol_node_problems{cause="helper"} 0
netpol_node_problems{cause="own_node"} 0
netpol_node_problems{cause="pod_interface"} 0
netpol_node_problems{cause="pod_ranges"} 0
netpol_node_problems{cause="policy_engine"} 1
netpol_node_problems{cause="queue"} 0
netpol_node_problems{cause="unknown"} 0
netpol_node_problems{cause="untracked"} 0
`

// A new node gets its bridge with the first pod, after the agent has started, then the sysctls, and
// later flowtables.
func TestBridgeThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine, flowtable := Problem{PolicyEngine, "Calico"}, Problem{Offload, "fastpath"}
		ipv4, ipv6 := Problem{BridgeNetfilter, "IPv4"}, Problem{BridgeNetfilter, "IPv6"}
		node := newFake(engine)
		reg := prometheus.NewRegistry()
		ctx, stop := context.WithCancel(t.Context())
		var lines []string
		ctx = klog.NewContext(ctx, funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
		c := New(node, func() module.Facts { return module.Facts{} }, reg)
		c.Begin(ctx)
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		for _, step := range []struct {
			found      []Problem
			bridges    int // number of bridge problems
			flowtables int
			log        int // lines so far
		}{
			{nil, 0, 0, 1},
			{[]Problem{ipv4, ipv6}, 2, 0, 3},
			{[]Problem{ipv4, ipv6}, 2, 0, 3},
			{[]Problem{ipv4}, 1, 0, 3},
			{nil, 0, 0, 3},
			{[]Problem{ipv4}, 1, 0, 4},
			{[]Problem{flowtable}, 0, 1, 5},
		} {
			node.Store(&State{Problems: append(step.found, engine)})
			time.Sleep(interval)
			synctest.Wait()
			if err := testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(exported, step.bridges, step.flowtables))); err != nil {
				t.Error(err)
			}
			if len(lines) != step.log {
				t.Errorf("%d lines are logged, want %d: %q", len(lines), step.log, lines)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
	})
}

// There is a problem while the counter of untracked packets grows, and no longer.
func TestUntracked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var facts atomic.Pointer[module.Facts]
		facts.Store(&module.Facts{Untracked: 7, Counted: true}) // counted for an earlier agent
		ctx, stop := context.WithCancel(t.Context())
		c := New(newFake(), func() module.Facts { return *facts.Load() }, prometheus.NewRegistry())
		c.Begin(ctx)
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		for _, step := range []struct {
			packets uint64
			counted bool
			want    float64
		}{{7, true, 0}, {8, true, 1}, {9, true, 1}, {9, true, 0}, {0, false, 0}, {9, true, 0}, {0, true, 0}, {1, true, 1}} {
			facts.Store(&module.Facts{Untracked: step.packets, Counted: step.counted})
			time.Sleep(interval)
			synctest.Wait()
			if got := testutil.ToFloat64(c.gauge.WithLabelValues(string(Untracked))); got != step.want {
				t.Errorf("at %d packets %v problems are exported, want %v", step.packets, got, step.want)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// On machines of either byte order.
func TestForwardsFindsTheExpression(t *testing.T) {
	for name, want := range map[string]bool{"fwd": true, "fwd2": false, "dup": false} {
		ae := netlink.NewAttributeEncoder()
		ae.String(unix.NFTA_RULE_TABLE, "fwd")
		ae.Nested(unix.NFTA_RULE_EXPRESSIONS, func(list *netlink.AttributeEncoder) error {
			for _, name := range []string{"immediate", name} {
				list.Nested(unix.NFTA_LIST_ELEM, func(e *netlink.AttributeEncoder) error {
					e.String(unix.NFTA_EXPR_NAME, name)
					return nil
				})
			}
			return nil
		})
		rule, err := ae.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if got := forwards(rule); got != want {
			t.Errorf("a rule with %s: got %t, want %t", name, got, want)
		}
	}
}
