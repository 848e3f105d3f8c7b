package nodecheck

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fake is a node. A nil map of sysctls is a kernel without br_netfilter.
type fake struct {
	interfaces, ports, chains []string
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

// bridge returns a node with a pod on a bridge, and its sysctls.
func bridge(ipv4, ipv6 string) fake {
	return fake{interfaces: []string{"lo", "eth0", "cni0", "veth1"}, ports: []string{"veth1"},
		sysctls: map[string]string{"net/bridge/bridge-nf-call-iptables": ipv4 + "\n", "net/bridge/bridge-nf-call-ip6tables": ipv6 + "\n"}}
}

func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		node fake
		want []string // cause and what is found
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
		"unreadable":             {fake{err: errors.New("denied")}, []string{"unknown denied", "unknown denied"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range Check(test.node) {
				got = append(got, string(p.Cause)+" "+p.Found)
				if line := p.String(); strings.Contains(line, "\n") || !strings.Contains(line, p.Found) {
					t.Errorf("not one line that names %s: %q", p.Found, line)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestExport(t *testing.T) {
	reg := prometheus.NewRegistry()
	Export(reg, Check(bridge("0", "0")))
	want := `# HELP netpol_node_problems What on this node may keep policies from being enforced, or enforces policies too, by cause, as found at start.
# TYPE netpol_node_problems gauge
netpol_node_problems{cause="bridge_netfilter"} 2
netpol_node_problems{cause="data_plane"} 0
netpol_node_problems{cause="policy_engine"} 0
netpol_node_problems{cause="unknown"} 0
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
