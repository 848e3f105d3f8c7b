package labtest

import (
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/lab"
)

// ForgetConnections empties the connection table of a node, as conntrack -F does. To packets
// that come then it makes no difference that the entries did not expire.
func ForgetConnections(t *testing.T, node *lab.Node) {
	t.Helper()
	const subsystem, remove = 1, 2 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_DELETE
	all := netlink.Message{
		Header: netlink.Header{Type: subsystem<<8 | remove, Flags: netlink.Request | netlink.Acknowledge},
		Data:   make([]byte, 4), // struct nfgenmsg: of any family
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
