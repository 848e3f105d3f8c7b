package nodecheck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// families are those whose tables have chains at the IP hooks.
var families = map[uint8]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}

func (s *State) readChains() error {
	former := false
	err := listNftables(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, func(family uint8, chain []byte) {
		table, chainName := nlattr.Text(nlattr.Get(chain, unix.NFTA_CHAIN_TABLE)), nlattr.Text(nlattr.Get(chain, unix.NFTA_CHAIN_NAME))
		hook, policy := uint64(unix.NF_INET_NUMHOOKS), uint64(accept)
		if value := nlattr.Get(chain, unix.NFTA_CHAIN_HOOK); value != nil {
			hook = nlattr.Number(nlattr.Get(value, unix.NFTA_HOOK_HOOKNUM))
		}
		if value := nlattr.Get(chain, unix.NFTA_CHAIN_POLICY); value != nil {
			policy = nlattr.Number(value)
		}
		name, ip := families[family]
		forwarded := hook == unix.NF_INET_PRE_ROUTING || hook == unix.NF_INET_FORWARD || hook == unix.NF_INET_POST_ROUTING
		former = former || table == upstream && chainName == formerChain
		s.addChain(name, table, chainName, ip && forwarded && policy == drop)
	})
	if former {
		s.Problems = slices.DeleteFunc(s.Problems, func(p Problem) bool { return strings.HasPrefix(p.Found, upstream) })
	}
	return err
}

func (s *State) readFlowtables() error {
	return listNftables(unix.NFT_MSG_GETFLOWTABLE, unix.NFPROTO_UNSPEC, func(_ uint8, flowtable []byte) {
		name := fmt.Sprintf("flowtable %s of table %s", nlattr.Text(nlattr.Get(flowtable, flowtableName)), nlattr.Text(nlattr.Get(flowtable, flowtableTable)))
		if nlattr.Number(nlattr.Get(flowtable, flowtableFlags))&flowtableHardware != 0 {
			name += ", in hardware: denied connections go on for up to two seconds"
		}
		s.add(Offload, name)
	})
}

func (s *State) readHelpers() error {
	return listNftables(unix.NFT_MSG_GETOBJ, unix.NFPROTO_UNSPEC, func(family uint8, object []byte) {
		if nlattr.Number(nlattr.Get(object, unix.NFTA_OBJ_TYPE)) == objectHelper {
			s.add(Helper, fmt.Sprintf("helper %s of table %s %s", nlattr.Text(nlattr.Get(object, unix.NFTA_OBJ_NAME)), families[family], nlattr.Text(nlattr.Get(object, unix.NFTA_OBJ_TABLE))))
		}
	})
}

// readForwards finds rules that forward packets to another interface before the IP hooks.
func (s *State) readForwards() error {
	found := false
	err := listNftables(unix.NFT_MSG_GETRULE, unix.NFPROTO_NETDEV, func(_ uint8, rule []byte) {
		found = found || forwards(rule)
	})
	if found {
		s.add(DataPlane, "rule with fwd in a table of the family netdev")
	}
	return err
}

// forwards reports whether a rule has the expression fwd.
func forwards(rule []byte) bool {
	for _, expression := range nlattr.All(nlattr.Get(rule, unix.NFTA_RULE_EXPRESSIONS)) {
		if nlattr.Text(nlattr.Get(expression, unix.NFTA_EXPR_NAME)) == "fwd" {
			return true
		}
	}
	return false
}

// filtered returns the indices of the interfaces with a qdisc that runs filters: clsact or ingress.
func filtered() (map[int]bool, error) {
	found := map[int]bool{}
	err := list(unix.NETLINK_ROUTE, unix.RTM_GETQDISC, make([]byte, sizeofTcMsg), func(header, qdisc []byte) {
		if kind := nlattr.Text(nlattr.Get(qdisc, unix.TCA_KIND)); kind == "clsact" || kind == "ingress" {
			found[int(binary.NativeEndian.Uint32(header[tcMsgIfindex:]))] = true
		}
	})
	return found, err
}

// hasBPF reports whether an interface has an eBPF program of traffic control.
func hasBPF(index int) (found bool, err error) {
	for _, parent := range []uint32{clsactIn, clsactOut} {
		request := make([]byte, sizeofTcMsg)
		binary.NativeEndian.PutUint32(request[tcMsgIfindex:], uint32(index))
		binary.NativeEndian.PutUint32(request[tcMsgParent:], parent)
		err = errors.Join(err, list(unix.NETLINK_ROUTE, unix.RTM_GETTFILTER, request, func(_, filter []byte) {
			found = found || nlattr.Text(nlattr.Get(filter, unix.TCA_KIND)) == "bpf"
		}))
	}
	return found, err
}

// listNftables lists the objects of a family, or of all.
func listNftables(kind uint16, family uint8, add func(family uint8, attributes []byte)) error {
	request := []byte{family, unix.NFNETLINK_V0, 0, 0}
	return list(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|kind, request, func(header, attributes []byte) {
		add(header[0], attributes)
	})
}

// list calls add with the parts of each answer. Its header is as long as the request. It decodes
// one by one, because a node can have tens of thousands of chains. A kernel without a family has
// no objects of it.
func list(protocol int, kind uint16, request []byte, add func(header, attributes []byte)) error {
	conn, err := netlink.Dial(protocol, nil)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer conn.Close()
	_, err = conn.Send(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | netlink.Dump},
		Data:   request,
	})
	if err != nil {
		return fmt.Errorf("netlink request %#x: %w", kind, err)
	}
	for m, err := range conn.ReceiveIter() {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("netlink request %#x: %w", kind, err)
		}
		if len(m.Data) >= len(request) {
			add(m.Data[:len(request)], m.Data[len(request):])
		}
	}
	return nil
}

const (
	// Policies of chains: NF_DROP and NF_ACCEPT of linux/netfilter.h.
	drop   = 0
	accept = 1

	// linux/netfilter/nf_tables.h
	objectHelper      = 3 // NFT_OBJECT_CT_HELPER
	flowtableTable    = 1 // NFTA_FLOWTABLE_TABLE
	flowtableName     = 2 // NFTA_FLOWTABLE_NAME
	flowtableFlags    = 7 // NFTA_FLOWTABLE_FLAGS
	flowtableHardware = 1 // NFT_FLOWTABLE_HW_OFFLOAD

	// struct tcmsg of linux/rtnetlink.h, and the parents of filters: TC_H_CLSACT with
	// TC_H_MIN_INGRESS and TC_H_MIN_EGRESS of linux/pkt_sched.h.
	sizeofTcMsg  = 20
	tcMsgIfindex = 4
	tcMsgParent  = 12
	clsactIn     = 0xfffffff2
	clsactOut    = 0xfffffff3
)
