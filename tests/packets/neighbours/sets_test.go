package neighbours

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The families whose sets nft lists, whatever table it reads or writes.
var families = []uint8{unix.NFPROTO_INET, unix.NFPROTO_IPV4, unix.NFPROTO_IPV6, unix.NFPROTO_BRIDGE, unix.NFPROTO_ARP, unix.NFPROTO_NETDEV}

// typeofKinds is the number of kinds of expressions that nft's "typeof" may name.
const typeofKinds = 30

// Attributes in the user data of a set, from libnftnl's udata.h.
const (
	udataKeyByteOrder  = 0
	udataKeyTypeof     = 3
	udataTypeofExpr    = 0
	udataTypeofContent = 1
)

// makeTypeofSets creates a set of each kind in a table of each family, with the user data
// that nft 1.1 writes: the expression that defines the set's type. Versions of nft that do
// not know a kind crash when they read such a set, even if they are run for another table.
func makeTypeofSets(t *testing.T, n node) {
	t.Helper()
	var batch []netlink.Message
	for _, family := range families {
		batch = append(batch, nfMessage(t, unix.NFT_MSG_NEWTABLE, family, func(ae *netlink.AttributeEncoder) {
			ae.String(unix.NFTA_TABLE_NAME, "typeof")
		}))
		for kind := range typeofKinds {
			batch = append(batch, nfMessage(t, unix.NFT_MSG_NEWSET, family, func(ae *netlink.AttributeEncoder) {
				ae.String(unix.NFTA_SET_TABLE, "typeof")
				ae.String(unix.NFTA_SET_NAME, fmt.Sprintf("kind%d", kind))
				ae.Uint32(unix.NFTA_SET_ID, uint32(kind+1))
				ae.Uint32(unix.NFTA_SET_KEY_TYPE, 7) // ipv4_addr
				ae.Uint32(unix.NFTA_SET_KEY_LEN, 4)
				ae.Bytes(unix.NFTA_SET_USERDATA, typeofData(uint32(kind)))
			}))
		}
	}
	conn := nfConn(t, n)
	defer conn.Close()
	send(t, conn, batch)
}

// typeofData returns 00 04 BYTE-ORDER 03 08 00 04 KIND 01 00, in which each length is that
// of a value.
func typeofData(kind uint32) []byte {
	data := []byte{udataKeyByteOrder, 4, 2, 0, 0, 0, udataKeyTypeof, 8, udataTypeofExpr, 4}
	data = binary.NativeEndian.AppendUint32(data, kind)
	return append(data, udataTypeofContent, 0)
}

// nfMessage returns a message that creates an nftables object.
func nfMessage(t *testing.T, kind uint16, family uint8, attributes func(*netlink.AttributeEncoder)) netlink.Message {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	ae.ByteOrder = binary.BigEndian
	attributes(ae)
	data, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Create},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, data...),
	}
}

// send sends messages as one transaction.
func send(t *testing.T, conn *netlink.Conn, batch []netlink.Message) {
	t.Helper()
	edge := func(kind netlink.HeaderType, flags netlink.HeaderFlags) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
			Data:   binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	batch = append([]netlink.Message{edge(unix.NFNL_MSG_BATCH_BEGIN, 0)}, batch...)
	batch[len(batch)-1].Header.Flags |= netlink.Acknowledge
	batch = append(batch, edge(unix.NFNL_MSG_BATCH_END, 0))
	if _, err := conn.SendMessages(batch); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Receive(); err != nil {
		t.Fatal(err)
	}
}

// listSets lists other programs' tables and sets in the kernel's encoding, because nft
// cannot read them.
func listSets(t *testing.T, n node) string {
	t.Helper()
	conn := nfConn(t, n)
	defer conn.Close()
	var text strings.Builder
	for _, what := range []uint16{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETSET} {
		for _, family := range families {
			messages, err := conn.Execute(netlink.Message{
				Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | what), Flags: netlink.Request | netlink.Dump},
				Data:   []byte{family, unix.NFNETLINK_V0, 0, 0},
			})
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				if !strings.Contains(string(m.Data), "netpol-agent\x00") {
					fmt.Fprintf(&text, "%d %x\n", family, m.Data[4:]) // without the generation
				}
			}
		}
	}
	return text.String()
}

// nfConn opens a socket of the node.
func nfConn(t *testing.T, n node) *netlink.Conn {
	t.Helper()
	var conn *netlink.Conn
	err := n.Nodes[0].Do(func() (err error) {
		conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
