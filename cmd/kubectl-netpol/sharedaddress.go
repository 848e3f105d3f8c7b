package main

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// sharedAddressNotes returns a note for each address of the members, pods or addresses, that the status of a
// pod or of a Node elsewhere has as well: agents cannot always know which of them a packet is from (NP-63).
func sharedAddressNotes(in clusterstate.Input, members map[string]bool) []string {
	pods := map[netip.Addr][]*compile.Pod{}
	for _, p := range in.Pods {
		pod := compile.NewPod(p)
		for _, a := range pod.Addrs {
			pods[a] = append(pods[a], pod)
		}
	}
	hosts := map[netip.Addr]string{}
	for _, n := range in.Nodes {
		node := compile.NewNode(n)
		for _, a := range node.Addrs {
			hosts[a] = node.Name
		}
	}
	var notes []string
	for addr, claims := range pods {
		for _, p := range claims {
			if !members[p.Endpoint.String()] && !members[addr.String()] {
				continue
			}
			if host := hosts[addr]; host != "" && host != p.Node {
				notes = append(notes, sharedAddressNote(p, addr, "node "+host))
			}
			for _, other := range claims {
				if other.Node != p.Node {
					notes = append(notes, sharedAddressNote(p, addr, "pod "+other.Endpoint.String()))
				}
			}
		}
	}
	slices.Sort(notes)
	return notes
}

func sharedAddressNote(p *compile.Pod, addr netip.Addr, other string) string {
	return fmt.Sprintf("the address %s of pod %s is in the status of %s, too: where agents do not know whose it is, packets are decided as for each of them, and pass only if they are allowed for all", addr, p.Endpoint.String(), other)
}
