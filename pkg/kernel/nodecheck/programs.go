package nodecheck

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// checkPrograms finds programs and rules that may forward packets of pods before any netfilter
// hook.
func checkPrograms(node Node) []Problem {
	found, err := node.Programs()
	var problems []Problem
	for _, name := range found {
		problems = append(problems, Problem{Cause: DataPlane, Message: "Policies are not enforced for packets that it sends on past netfilter", Found: name})
	}
	if err != nil {
		problems = append(problems, unknown("programs of interfaces", err))
	}
	return problems
}

// Programs implements Node. It finds XDP programs and eBPF programs of traffic control on veth
// interfaces, and netdev rules that forward. Programs attached by tcx or netkit cannot be listed
// with the agent's capabilities.
func (Host) Programs() ([]string, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer conn.Close()
	links, err := pairs(conn)
	if err != nil {
		return nil, err
	}
	filtered, err := ingress(conn)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, link := range links {
		if link.xdp {
			found = append(found, "XDP program at "+link.name)
		}
		if !filtered[link.index] {
			continue
		}
		bpf, err := hasBPF(conn, link.index)
		if err != nil {
			return nil, err
		}
		if bpf {
			found = append(found, "eBPF program of traffic control at "+link.name)
		}
	}
	fwd, err := forwards()
	if fwd {
		found = append(found, "rule with fwd in a table of the family netdev")
	}
	return found, err
}

// pair is one end of a veth pair.
type pair struct {
	index int32
	name  string
	xdp   bool
}

func pairs(conn *netlink.Conn) ([]pair, error) {
	messages, err := dump(conn, unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg))
	var links []pair
	for _, m := range messages {
		if link, veth := decodePair(m.Data); veth {
			links = append(links, link)
		}
	}
	return links, err
}

func decodePair(data []byte) (link pair, veth bool) {
	if len(data) < unix.SizeofIfInfomsg {
		return link, false
	}
	link.index = int32(binary.NativeEndian.Uint32(data[4:]))
	for typ, value := range nlattr.All(data[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			link.name = unix.ByteSliceToString(value)
		case unix.IFLA_LINKINFO:
			veth = attribute(value, unix.IFLA_INFO_KIND) == "veth"
		case unix.IFLA_XDP:
			attached := attribute(value, unix.IFLA_XDP_ATTACHED)
			link.xdp = attached != "" && attached[0] != 0
		}
	}
	return link, veth
}

// ingress returns the interfaces with a qdisc that runs filters: clsact or ingress.
func ingress(conn *netlink.Conn) (map[int32]bool, error) {
	messages, err := dump(conn, unix.RTM_GETQDISC, make([]byte, sizeofTcMsg))
	found := make(map[int32]bool)
	for _, m := range messages {
		if len(m.Data) < sizeofTcMsg {
			continue
		}
		if kind := attribute(m.Data[sizeofTcMsg:], unix.TCA_KIND); kind == "clsact" || kind == "ingress" {
			found[int32(binary.NativeEndian.Uint32(m.Data[4:]))] = true
		}
	}
	return found, err
}

// struct tcmsg of linux/rtnetlink.h, and the parents of filters: TC_H_CLSACT with TC_H_MIN_INGRESS
// and TC_H_MIN_EGRESS of linux/pkt_sched.h.
const (
	sizeofTcMsg  = 20
	clsactIn     = 0xfffffff2
	clsactOut    = 0xfffffff3
	tcMsgIfindex = 4
	tcMsgParent  = 12
)

func hasBPF(conn *netlink.Conn, index int32) (bool, error) {
	for _, parent := range []uint32{clsactIn, clsactOut} {
		request := make([]byte, sizeofTcMsg)
		binary.NativeEndian.PutUint32(request[tcMsgIfindex:], uint32(index))
		binary.NativeEndian.PutUint32(request[tcMsgParent:], parent)
		messages, err := dump(conn, unix.RTM_GETTFILTER, request)
		if err != nil {
			return false, err
		}
		for _, m := range messages {
			if len(m.Data) >= sizeofTcMsg && attribute(m.Data[sizeofTcMsg:], unix.TCA_KIND) == "bpf" {
				return true, nil
			}
		}
	}
	return false, nil
}

func dump(conn *netlink.Conn, kind netlink.HeaderType, request []byte) ([]netlink.Message, error) {
	messages, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | netlink.Dump},
		Data:   request,
	})
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	return messages, nil
}

// attribute returns the value of an attribute as a string, empty if it is missing.
func attribute(attributes []byte, want uint16) string {
	for typ, value := range nlattr.All(attributes) {
		if typ == want {
			return unix.ByteSliceToString(value)
		}
	}
	return ""
}
