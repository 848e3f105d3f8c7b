package nodecheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// checkFirewalls finds chains with the policy drop. It does not look for rules that accept
// packets of pods.
func checkFirewalls(node Node) []Problem {
	names, err := node.Dropping()
	if err != nil {
		return []Problem{unknown("policies of chains", err)}
	}
	var problems []Problem
	for _, name := range names {
		problems = append(problems, Problem{Cause: Firewall, Message: "A chain of other software drops what none of its rules accepts: connections that policies allow need such a rule, too", Found: name})
	}
	return problems
}

// checkUntracked reports a problem if the counter of untracked packets has grown since the last
// check.
func (c *Checker) checkUntracked() []Problem {
	packets, err := c.node.Untracked()
	if err != nil {
		return []Problem{unknown("the counter of untracked packets", err)}
	}
	grown := c.looked && packets > c.untracked
	c.looked, c.untracked = true, packets
	if !grown {
		return nil
	}
	return []Problem{{Cause: Untracked, Message: "Rules of other software keep packets of pods from connection tracking (NOTRACK): replies to isolated pods are denied", Found: "netpol_untracked_packets_total grows"}}
}

// checkHelpers finds connection tracking helpers, including those that kernels before 6.0 assign
// by port.
func checkHelpers(node Node) []Problem {
	names, err := node.Helpers()
	if err != nil {
		return []Problem{unknown("helpers of connection tracking", err)}
	}
	const sysctl = "net/netfilter/nf_conntrack_helper"
	if value, err := node.Sysctl(sysctl); err == nil && strings.TrimSpace(value) == "1" {
		names = append(names, "net.netfilter.nf_conntrack_helper=1")
	}
	var problems []Problem
	for _, name := range names {
		problems = append(problems, Problem{Cause: Helper, Message: "The kernel reads protocols such as FTP to expect further connections: these need policies like all others", Found: name})
	}
	return problems
}

// Helpers implements Node.
func (Host) Helpers() ([]string, error) {
	const helper = 3 // NFT_OBJECT_CT_HELPER
	var names []string
	for family, word := range families {
		err := listNetfilter(unix.NFT_MSG_GETOBJ, family, func(data []byte) {
			var table, name string
			kind := uint32(0)
			for typ, value := range nlattr.All(data) {
				switch typ {
				case unix.NFTA_OBJ_TABLE:
					table = unix.ByteSliceToString(value)
				case unix.NFTA_OBJ_NAME:
					name = unix.ByteSliceToString(value)
				case unix.NFTA_OBJ_TYPE:
					kind = number(value)
				}
			}
			if kind == helper {
				names = append(names, fmt.Sprintf("helper %s of table %s %s", name, word, table))
			}
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return names, nil
}

// families are the families whose tables have chains at the IP hooks.
var families = map[uint8]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}

// Dropping implements Node. It decodes chains one by one, because a node can have tens of
// thousands.
func (Host) Dropping() ([]string, error) {
	var names []string
	for family, word := range families {
		err := listNetfilter(unix.NFT_MSG_GETCHAIN, family, func(data []byte) {
			if name, ok := dropsForwarded(data); ok {
				names = append(names, word+" "+name)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(names)
	return names, nil
}

// dropsForwarded decodes a chain, and reports whether forwarded packets pass it and its policy is drop.
func dropsForwarded(data []byte) (name string, ok bool) {
	var table, chain string
	hook, policy := uint32(unix.NF_INET_NUMHOOKS), uint32(accept)
	for typ, value := range nlattr.All(data) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			table = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_NAME:
			chain = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_POLICY:
			policy = number(value)
		case unix.NFTA_CHAIN_HOOK:
			for typ, value := range nlattr.All(value) {
				if typ == unix.NFTA_HOOK_HOOKNUM {
					hook = number(value)
				}
			}
		}
	}
	forwarded := hook == unix.NF_INET_PRE_ROUTING || hook == unix.NF_INET_FORWARD || hook == unix.NF_INET_POST_ROUTING
	return table + " " + chain, forwarded && policy == drop
}

func number(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// forwards reports whether a rule of the family netdev forwards packets to another interface.
func forwards() (bool, error) {
	found := false
	err := listNetfilter(unix.NFT_MSG_GETRULE, unix.NFPROTO_NETDEV, func(data []byte) {
		found = found || bytes.Contains(data, []byte("\x08\x00\x01\x00fwd\x00")) // NFTA_EXPR_NAME "fwd"
	})
	return found, err
}

// Untracked implements Node.
func (h Host) Untracked() (packets uint64, err error) {
	err = listNetfilter(unix.NFT_MSG_GETOBJ, unix.NFPROTO_INET, func(data []byte) {
		var table, name string
		var content []byte
		for typ, value := range nlattr.All(data) {
			switch typ {
			case unix.NFTA_OBJ_TABLE:
				table = unix.ByteSliceToString(value)
			case unix.NFTA_OBJ_NAME:
				name = unix.ByteSliceToString(value)
			case unix.NFTA_OBJ_DATA:
				content = value
			}
		}
		if table == h.Table && name == h.UntrackedCounter {
			packets = counterPackets(content)
		}
	})
	return packets, err
}

// counterPackets returns the packets of an encoded counter.
func counterPackets(data []byte) uint64 {
	for typ, value := range nlattr.All(data) {
		if typ == unix.NFTA_COUNTER_PACKETS && len(value) == 8 {
			return binary.BigEndian.Uint64(value)
		}
	}
	return 0
}

// listNetfilter dumps the nftables objects of a family. A kernel without the family has none.
func listNetfilter(kind uint16, family uint8, add func(attributes []byte)) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	_, err = conn.Send(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Dump},
		Data:   []byte{family, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return fmt.Errorf("list nftables: %w", err)
	}
	for m, err := range conn.ReceiveIter() {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list nftables: %w", err)
		}
		if len(m.Data) >= nfgenLen {
			add(m.Data[nfgenLen:])
		}
	}
	return nil
}

const (
	nfgenLen = 4 // struct nfgenmsg

	// Policies of chains: NF_DROP and NF_ACCEPT of linux/netfilter.h.
	drop   = 0
	accept = 1
)
