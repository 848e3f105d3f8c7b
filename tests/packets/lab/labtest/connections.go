package labtest

import (
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// ForgetConnections flushes the connection table of a node, like conntrack -F. For later
// packets it makes no difference whether entries expired or were flushed.
func ForgetConnections(t *testing.T, node *lab.Node) {
	t.Helper()
	const subsystem, remove = 1, 2 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
	all := netlink.Message{
		Header: netlink.Header{Type: subsystem<<8 | remove, Flags: netlink.Request | netlink.Acknowledge},
		Data:   make([]byte, 4), // struct nfgenmsg: any family
	}
	var conn *netlink.Conn
	err := node.Do(func() (err error) {
		conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	if err == nil {
		defer conn.Close()
		_, err = conn.Execute(all)
	}
	if err != nil {
		t.Fatalf("connections of %s: %v", node.Name, err)
	}
}
