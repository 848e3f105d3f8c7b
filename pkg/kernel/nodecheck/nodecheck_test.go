package nodecheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2"
)

// fake is a node. Without sysctls the kernel has no br_netfilter.
type fake struct {
	interfaces, ports, chains []string
	flowtables                []Flowtable
	dropping, programs        []string
	helpers                   []string
	untracked                 uint64
	sysctls                   map[string]string
	err                       error
}

func (f fake) Interfaces() ([]string, error) { return f.interfaces, f.err }

func (f fake) BridgePort(name string) bool { return slices.Contains(f.ports, name) }

func (f fake) Sysctl(path string) (string, error) {
	if value, ok := f.sysctls[path]; ok {
		return value, nil
	}
	return "", fs.ErrNotExist
}

func (f fake) Chains() ([]string, error) { return f.chains, f.err }

func (f fake) Flowtables() ([]Flowtable, error) { return f.flowtables, f.err }

func (f fake) Dropping() ([]string, error) { return f.dropping, f.err }

func (f fake) Untracked() (uint64, error) { return f.untracked, f.err }

func (f fake) Helpers() ([]string, error) { return f.helpers, f.err }

func (f fake) Programs() ([]string, error) { return f.programs, f.err }

// bridge returns a node with a pod on a bridge, and its sysctls.
func bridge(ipv4, ipv6 string) fake {
	return fake{interfaces: []string{"lo", "eth0", "cni0", "veth1"}, ports: []string{"veth1"},
		sysctls: map[string]string{"net/bridge/bridge-nf-call-iptables": ipv4 + "\n", "net/bridge/bridge-nf-call-ip6tables": ipv6 + "\n"}}
}

// Only the first devices of a flowtable are named, because a node may have hundreds.
func TestDevicesOfAFlowtableAreNamed(t *testing.T) {
	devices := strings.Fields("a b c d e f g h i j")
	for n, want := range map[int]string{0: "", 2: "a, b", maxDevices: "a, b, c, d, e, f, g, h", maxDevices + 2: "a, b, c, d, e, f, g, h and 2 more"} {
		for _, hardware := range []bool{false, true} {
			problems := checkFlowtables(fake{flowtables: []Flowtable{{Table: "t", Name: "f", Devices: devices[:n], Hardware: hardware}}})
			if len(problems) != 1 || problems[0].Devices != want || strings.Contains(problems[0].Message, "hardware") != hardware {
				t.Errorf("got %+v, want the devices %q", problems, want)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		node fake
		want []string // cause and finding
	}{
		"routed pods need no bridge":  {node: fake{interfaces: []string{"lo", "eth0", "veth1"}}},
		"bridge with its sysctls":     {node: bridge("1", "1")},
		"bridge without br_netfilter": {fake{interfaces: []string{"veth1"}, ports: []string{"veth1"}}, []string{"bridge_netfilter no br_netfilter"}},
		"bridge without IPv4":         {bridge("0", "1"), []string{"bridge_netfilter net.bridge.bridge-nf-call-iptables=0"}},
		"bridge without both": {bridge("0", "0"), []string{
			"bridge_netfilter net.bridge.bridge-nf-call-iptables=0", "bridge_netfilter net.bridge.bridge-nf-call-ip6tables=0"}},
		"Cilium":         {fake{interfaces: []string{"lo", "cilium_net", "cilium_host"}}, []string{"data_plane interface cilium_host"}},
		"OVN-Kubernetes": {fake{interfaces: []string{"br-int", "ovn-k8s-mp0"}}, []string{"data_plane interface ovn-k8s-mp0"}},
		"kindnetd":       {fake{chains: []string{"filter", "kindnet-network-policies", "postrouting"}}, []string{"policy_engine kindnet-network-policies"}},
		"kube-router, once": {fake{chains: []string{"KUBE-ROUTER-INPUT", "KUBE-ROUTER-FORWARD", "KUBE-NWPLCY-DEFAULT"}},
			[]string{"policy_engine KUBE-ROUTER-INPUT"}},
		"Calico":                 {fake{chains: []string{"cali-FORWARD"}}, []string{"policy_engine cali-FORWARD"}},
		"kube-proxy and ourself": {node: fake{chains: []string{"kube-network-policies", "kube-proxy", "KUBE-FORWARD", "KUBE-SERVICES"}}},
		"a flowtable": {fake{flowtables: []Flowtable{{Table: "kube-proxy", Name: "fastpath", Devices: []string{"eth0"}}}},
			[]string{"flowtable flowtable fastpath of table kube-proxy"}},
		"Docker": {fake{dropping: []string{"ip filter FORWARD"}}, []string{"firewall ip filter FORWARD"}},
		"eBPF":   {fake{programs: []string{"XDP program at veth1"}}, []string{"data_plane XDP program at veth1"}},
		"FTP":    {fake{helpers: []string{"helper ftp of table ip x"}}, []string{"helper helper ftp of table ip x"}},
		"helpers by port": {fake{sysctls: map[string]string{"net/netfilter/nf_conntrack_helper": "1\n"}},
			[]string{"helper net.netfilter.nf_conntrack_helper=1"}},
		"no helpers by port": {node: fake{sysctls: map[string]string{"net/netfilter/nf_conntrack_helper": "0\n"}}},
		"unreadable":         {fake{err: errors.New("denied")}, slices.Repeat([]string{"unknown denied"}, 7)},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			c := New(t.Context(), test.node, prometheus.NewRegistry())
			for _, p := range slices.Concat(c.nodeProblems, c.engines) {
				got = append(got, string(p.Cause)+" "+p.Found)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

const exported = `# HELP netpol_node_problems What on this node may keep policies from being enforced, or enforces policies too, by cause. Other policy engines are looked for when the agent starts, the rest every minute.
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

// changing is a node that a test can replace.
type changing struct {
	mu sync.Mutex
	fake
}

func (c *changing) become(f fake) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fake = f
}

func (c *changing) now() fake {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fake
}

func (c *changing) Interfaces() ([]string, error)      { return c.now().Interfaces() }
func (c *changing) BridgePort(name string) bool        { return c.now().BridgePort(name) }
func (c *changing) Flowtables() ([]Flowtable, error)   { return c.now().Flowtables() }
func (c *changing) Sysctl(path string) (string, error) { return c.now().Sysctl(path) }
func (c *changing) Dropping() ([]string, error)        { return c.now().Dropping() }
func (c *changing) Untracked() (uint64, error)         { return c.now().Untracked() }
func (c *changing) Helpers() ([]string, error)         { return c.now().Helpers() }
func (c *changing) Programs() ([]string, error)        { return c.now().Programs() }

// A new node gets its bridge with the first pod, after the agent has started, then the sysctls, and
// later flowtables.
func TestBridgeThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &changing{fake: fake{interfaces: []string{"lo", "eth0"}, chains: []string{"cali-FORWARD"}}}
		reg := prometheus.NewRegistry()
		ctx, stop := context.WithCancel(t.Context())
		var lines []string
		ctx = klog.NewContext(ctx, funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
		c := New(ctx, node, reg)
		ended := make(chan error)
		go func() { ended <- c.Run(ctx, func() Facts { return Facts{} }) }()
		offloading := func(devices ...string) fake {
			return fake{flowtables: []Flowtable{{Table: "kube-proxy", Name: "fastpath", Devices: devices}}}
		}
		many := offloading()
		for i := range 2 * maxFlowtables {
			many.flowtables = append(many.flowtables, Flowtable{Table: "many", Name: fmt.Sprint(i)})
		}
		for _, step := range []struct {
			node       fake
			bridges    int // number of bridge problems
			flowtables int
			log        int // lines so far
		}{
			{node.fake, 0, 0, 1},
			{bridge("0", "0"), 2, 0, 3},
			{bridge("0", "0"), 2, 0, 3},
			{bridge("0", "1"), 1, 0, 3},
			{bridge("1", "1"), 0, 0, 3},
			{bridge("0", "1"), 1, 0, 4},
			{offloading("veth1"), 0, 1, 5},
			{offloading("veth1", "veth2"), 0, 1, 5},
			{many, 0, maxFlowtables, 4 + maxFlowtables},
		} {
			node.become(step.node)
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
		node := &changing{fake: fake{untracked: 7}} // counted for an earlier agent
		reg := prometheus.NewRegistry()
		ctx, stop := context.WithCancel(t.Context())
		c := New(ctx, node, reg)
		ended := make(chan error)
		go func() { ended <- c.Run(ctx, func() Facts { return Facts{} }) }()
		for _, step := range []struct {
			packets uint64
			want    float64
		}{{7, 0}, {8, 1}, {9, 1}, {9, 0}, {0, 0}, {1, 1}} {
			node.become(fake{untracked: step.packets})
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
