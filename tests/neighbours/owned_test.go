package neighbours

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/lab/labtest"
)

// tableOwner is NFT_TABLE_F_OWNER: only the socket that made the table may change it.
const tableOwner = 2

// TestOwnedTable has another process own a table of the agent's name. The kernel refuses what
// the agent writes: it says so, and enforces when that process ends.
func TestOwnedTable(t *testing.T) {
	labtest.Need(t)
	t.Parallel()
	n := newNode(t)
	owner := nfConn(t, n)
	send(t, owner, []netlink.Message{nfMessage(t, unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, "kube-network-policies")
		ae.Uint32(unix.NFTA_TABLE_FLAGS, tableOwner)
	})})
	agent := n.agent(t)
	err := labtest.Within(t, func() bool {
		status, body, err := agent.Get(t.Context(), "/readyz")
		return err == nil && status == http.StatusServiceUnavailable && strings.Contains(body, "operation not permitted")
	})
	if err != nil {
		t.Error("readyz does not say that the table cannot be written")
	}
	if err := owner.Close(); err != nil { // the kernel removes the table
		t.Fatal(err)
	}
	labtest.WaitReady(t, agent)
	n.expect(t, neighbour{})
}
