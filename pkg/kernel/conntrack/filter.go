package conntrack

import (
	"context"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Attributes and flags of linux/netfilter/nfnetlink_conntrack.h and
// net/netfilter/nf_conntrack_netlink.c.
const (
	attrFilter = 25

	attrFilterOriginal = 1
	attrFilterReply    = 2

	filterBySource = 1 << 0 // CTA_FILTER_F_CTA_IP_SRC

	attrStatusMask = 26
)

// filter selects the connections that have an end at an address. Without an end it
// selects all connections of the family; the zero value selects those of both families.
//
// The ends of a connection are the sources of its two directions, as the first packet
// and the replies arrive. NAT does not change them: behind a Service the replies come
// from the pod, and a masqueraded client still sends from its own address.
type filter struct {
	family uint8
	end    netip.Addr
	reply  bool // the end that replies, otherwise the one that opened the connection
	// Only connections whose bits of mask are those of status; kernels before 5.15 ignore it.
	status, mask uint32
}

// Live connections are few among finished ones: those that a flowtable forwards, those with packets in both
// directions for a while, and one-way flows, beside the packets of a moment that no one has answered.
var (
	offloadedOnes  = filter{status: statusOffload, mask: statusOffload}
	assuredOnes    = filter{status: statusAssured, mask: statusAssured}
	unansweredOnes = filter{mask: statusSeenReply}
)

func (f filter) hasFamily(family uint8) bool { return f.family == unix.AF_UNSPEC || f.family == family }

// openedBy selects the connections that addr opened, and answeredBy those opened to it.
func openedBy(addr netip.Addr) filter { return filter{family: familyOf(addr), end: addr} }
func answeredBy(addr netip.Addr) filter {
	return filter{family: familyOf(addr), end: addr, reply: true}
}

func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// has reports whether f selects e.
func (f filter) has(e entry) bool {
	switch {
	case e.status&f.mask != f.status:
		return false
	case !f.end.IsValid():
		return f.hasFamily(e.key.family)
	case f.reply:
		return e.reply.addr == f.end
	}
	return e.original.addr == f.end
}

// message returns the data of the message that lists the connections f selects.
func (f filter) message() []byte {
	b := nfgenHeader(f.family)
	if f.mask != 0 {
		b.Uint32(attrStatus, f.status)
		b.Uint32(attrStatusMask, f.mask)
		return b
	}
	if !f.end.IsValid() {
		return b
	}
	source := uint16(attrIPv4Src)
	if f.end.Is6() {
		source = attrIPv6Src
	}
	direction, flags := uint16(attrOriginal), uint16(attrFilterOriginal)
	if f.reply {
		direction, flags = attrReply, attrFilterReply
	}
	tuple := b.Nest(direction)
	ip := b.Nest(attrTupleIP)
	b.Bytes(source, f.end.AsSlice())
	b.End(ip)
	b.End(tuple)
	list := b.Nest(attrFilter)
	b.Bytes(flags, binary.NativeEndian.AppendUint32(nil, filterBySource))
	b.End(list)
	return b
}

// maxFiltered is the largest number of addresses that are listed one by one. The kernel
// walks its whole table for each filtered dump, which takes a fortieth of the time of an
// unfiltered one.
const maxFiltered = 16

// fewEntries is the number of connections up to which all are listed without a filter:
// copying so many takes no longer than walking an empty table of 2^18 buckets, as each
// filtered dump does.
const fewEntries = 1 << 12

// fewConnections reports whether there are at most fewEntries connections. If that cannot be read, it
// reports false.
func fewConnections(count func() (int, error)) bool {
	n, err := count()
	return err == nil && n <= fewEntries
}

// unfiltered says for each probed address family whether the kernel ignores filters.
type unfiltered map[uint8]bool

// listable returns filters that select at least the same connections and that the kernel
// supports. If there are few connections, it selects all. between is called after each piece of a list.
func (u unfiltered) listable(ctx context.Context, open func(context.Context) (table, error), count func() (int, error), filters []filter, between func()) ([]filter, error) {
	if fewConnections(count) {
		return []filter{{}}, nil
	}
	for i, f := range filters {
		filtered, err := u.filters(ctx, open, f.end, between)
		if err != nil {
			return nil, err
		}
		if !filtered {
			filters[i] = filter{family: f.family}
		}
	}
	return withoutDuplicates(filters), nil
}

// filters reports whether the kernel filters connections of the family of sample. To find out,
// it lists the connections of an address that no connection has. Kernels before 5.9 then list
// all connections, and so do later ones for IPv6, where the comparison is inverted: they leave
// out what the filter selects. Without connections of the family it reports true and probes
// again at the next call. between is called after each piece of the list.
func (u unfiltered) filters(ctx context.Context, open func(context.Context) (table, error), sample netip.Addr, between func()) (bool, error) {
	family, unused := familyOf(sample), netip.IPv6Unspecified()
	if ignored, known := u[family]; known {
		return !ignored, nil
	}
	if sample.Is4() {
		unused = netip.IPv4Unspecified()
	}
	list, err := open(ctx)
	if err != nil {
		return false, err
	}
	defer list.close()
	found := 0
	for _, err := range list.entries(openedBy(unused)) { // to the end, to keep the socket
		if err != nil {
			return false, err
		}
		found++
		if found%pieceLen == 0 {
			between()
		}
	}
	if found == 0 {
		return true, nil
	}
	klog.FromContext(ctx).V(2).Info("The kernel does not filter connections; all of the family are listed each time", "ipv6", sample.Is6())
	u[family] = true
	return false, nil
}

// noteListed records that a listing of f, which has an end, contained e. If f selects e, the
// kernel filters that family.
func (u unfiltered) noteListed(f filter, e entry) {
	if f.has(e) {
		u[f.family] = false
	}
}
