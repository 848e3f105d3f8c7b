package rule

import "slices"

// TypeWithID returns the type with this number, the zero Type if there is none.
func TypeWithID(id uint32) Type {
	all := []*dataType{nfProto, ipv4Addr, ipv6Addr, inetProto, inetService, mark, ifname, etherType, icmpv6Type, fibAddrType}
	i := slices.IndexFunc(all, func(d *dataType) bool { return d.id == id })
	if i < 0 {
		return Type{}
	}
	return Type{[maxParts]*dataType{all[i]}}
}
