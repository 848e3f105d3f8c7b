package rule

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Keys of linux/netfilter/nf_tables.h and directions of linux/netfilter/nf_conntrack_tuple_common.h.
const (
	ctSourceIPv4 = 19 // NFT_CT_SRC_IP
	ctSourceIPv6 = 21 // NFT_CT_SRC_IP6
	ctOriginal   = 0
	ctReply      = 1
)

// ctAddr loads an address of a connection. expr.Ct does not encode the direction of these keys.
type ctAddr struct {
	expr.Any                 // only makes this type one
	key, direction, register uint32
}

// marshal does what expr.Marshal does for other expressions.
func (c ctAddr) marshal() ([]byte, error) {
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	data, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_CT_KEY, Data: number(c.key)},
		{Type: unix.NFTA_CT_DREG, Data: number(c.register)},
		{Type: unix.NFTA_CT_DIRECTION, Data: []byte{byte(c.direction)}},
	})
	if err != nil {
		return nil, err
	}
	return netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_EXPR_NAME, Data: []byte("ct\x00")},
		{Type: unix.NLA_F_NESTED | unix.NFTA_EXPR_DATA, Data: data},
	})
}
