package nodecheck

import (
	"strings"
)

// State is what Node finds.
type State struct {
	Problems []Problem
}

// maxProblems bounds the problems of each cause.
const maxProblems = 16

func (s *State) add(cause Cause, found string) {
	others := 0
	for _, p := range s.Problems {
		if p == (Problem{cause, found}) {
			return
		}
		if p.Cause == cause {
			others++
		}
	}
	if others < maxProblems {
		s.Problems = append(s.Problems, Problem{cause, found})
	}
}

// dataPlanes are the interfaces of data planes that forward packets of pods by eBPF or Open
// vSwitch.
var dataPlanes = map[string]string{
	"cilium_host": "Cilium",
	"ovn-k8s-mp0": "OVN-Kubernetes",
	"antrea-gw0":  "Antrea",
	"ovn0":        "Kube-OVN",
}

func (s *State) addInterface(name string) {
	if program, ok := dataPlanes[name]; ok {
		s.add(DataPlane, "interface "+name+" of "+program)
	}
}

// engines are the name prefixes of tables and chains of software that enforces policies.
var engines = []struct{ prefix, name string }{
	{"kindnet-network-policies", "kindnetd"},
	{"KUBE-ROUTER-", "kube-router"},
	{"KUBE-NWPLCY-", "kube-router"},
	{"cali-", "Calico"},
	{"calico", "Calico"},
	{"AZURE-NPM", "Azure Network Policy Manager"},
	{"WEAVE-NPC", "Weave Net"},
	{upstream, "the upstream agent"},
}

// upstream is the name of the upstream agent's table, and of ours in versions up to 0.2.0, which had a
// chain formerChain.
const upstream, formerChain = "kube-network-policies", "divert"

// addChain adds a chain. drops says whether forwarded packets pass it and its policy is drop. It
// does not look for rules that accept packets of pods.
func (s *State) addChain(family, table, chain string, drops bool) {
	for _, engine := range engines {
		if strings.HasPrefix(table, engine.prefix) || strings.HasPrefix(chain, engine.prefix) {
			s.add(PolicyEngine, engine.prefix+"* of "+engine.name)
		}
	}
	if drops {
		s.add(Firewall, family+" "+table+" "+chain)
	}
}

const (
	bridgeIPv4 = "net.bridge.bridge-nf-call-iptables"
	bridgeIPv6 = "net.bridge.bridge-nf-call-ip6tables"
	// helpersByPort assigns connection tracking helpers by port, in kernels before 6.0.
	helpersByPort = "net.netfilter.nf_conntrack_helper"
)

// addSysctls adds the sysctls that the kernel has. bridged says whether an interface is a port of
// a bridge.
func (s *State) addSysctls(values map[string]string, bridged bool) {
	_, filters := values[bridgeIPv4]
	switch {
	case bridged && !filters:
		s.add(BridgeNetfilter, "no br_netfilter")
	case bridged:
		for _, name := range []string{bridgeIPv4, bridgeIPv6} {
			if values[name] == "0" {
				s.add(BridgeNetfilter, name+"=0")
			}
		}
	}
	if values[helpersByPort] == "1" {
		s.add(Helper, helpersByPort+"=1")
	}
}
