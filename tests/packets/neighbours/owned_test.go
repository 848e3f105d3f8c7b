package neighbours

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// tableOwner is NFT_TABLE_F_OWNER: only the socket that created the table may change it.
const tableOwner = 2

// TestOwnedTable: another process owns a table with the agent's name, so the kernel refuses
// the agent's changes. The agent reports that, and enforces policies once the process has
// ended.
func TestOwnedTable(t *testing.T) {
	labtest.Need(t)
	t.Parallel()
	n := newNode(t)
	owner := nfConn(t, n)
	send(t, owner, []netlink.Message{nfMessage(t, unix.NFT_MSG_NEWTABLE, unix.NFPROTO_INET, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.NFTA_TABLE_NAME, "netpol-agent")
		ae.Uint32(unix.NFTA_TABLE_FLAGS, tableOwner)
	})})
	agent := n.agent(t)
	var answer string
	err := labtest.Within(t, func() bool {
		status, body, err := agent.Get(t.Context(), "/readyz")
		answer = fmt.Sprint(status, " ", body, err)
		return err == nil && status == http.StatusServiceUnavailable && strings.Contains(body, "operation not permitted")
	})
	if err != nil {
		t.Errorf("readyz does not say that the table cannot be written: %s", answer)
	}
	if err := owner.Close(); err != nil { // the kernel removes the table
		t.Fatal(err)
	}
	labtest.WaitReady(t, agent)
	n.expect(t, neighbour{})
}
