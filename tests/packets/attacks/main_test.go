// Package attacks tests what an attacker, a hostile tenant or an unlucky operator can do to
// a node, with real packets and the built agent. Each file is one attack; docs/security.md
// describes the defences. A test that takes more than some seconds calls labtest.NeedHard.
package attacks

import (
	"os"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

func TestMain(m *testing.M) { os.Exit(labtest.Main(m)) }
