// Package neighbours runs the agent beside other programs of a node that use netfilter and
// routing, with real packets and the built agent. A neighbour comes while the agent runs, acts
// again, and is there first when the agent starts. Each time what policies deny stays denied,
// what they allow passes or is in the neighbour's exceptions, a connection ends when it is
// denied, and what the neighbour has in the kernel is after the agent's start, changes, end and
// cleanup what it was before.
//
// It needs root, nft, iptables-nft, iptables-legacy, ipset and conntrack (make tools). The short
// form, part of make test, has the neighbours that are not marked as long: under a minute. The
// table in docs/install/README.md is compared with the neighbours here. For the kernel's queue
// statement and flowtables: make test-vm RUN=Neighbours.
package neighbours

import (
	"os"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
