// Package neighbours runs the built agent beside other programs that use netfilter and
// routing on a node, with real packets. Each neighbour starts while the agent runs, acts
// again, and is started before the agent. Each time, denied traffic stays denied, allowed
// traffic passes unless it is one of the neighbour's exceptions, and a connection ends when
// it is denied. The neighbour's state in the kernel must be the same before and after the
// agent starts, changes, ends and is cleaned up.
//
// The tests need root, nft, iptables-nft, iptables-legacy, ipset and conntrack (make
// tools). The short form, part of make test, has the neighbours that are not marked as long
// and takes under a minute. The table in docs/install/README.md is compared with the
// neighbours here. For the kernel's queue statement and flowtables use make test-vm
// RUN=Neighbours.
package neighbours

import (
	"os"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
