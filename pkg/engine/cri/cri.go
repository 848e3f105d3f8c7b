// Package cri has the network of a pod as its node knows it.
package cri

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"
)

// Sandbox is the network that the node has made for a pod. The node knows it before the pod's
// status shows it (NP-60).
type Sandbox struct {
	Namespace, Name string
	UID             types.UID
	Addrs           []netip.Addr
	// Proven is set if interfaces and routes of the node show that the sandbox has the addresses.
	Proven bool
}
