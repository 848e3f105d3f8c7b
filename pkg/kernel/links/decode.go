package links

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

var errShort = errors.New("rtnetlink message too short")

// attributes decodes the attributes after the fixed part of a message.
func attributes(data []byte, fixed int) (*netlink.AttributeDecoder, error) {
	if len(data) < fixed {
		return nil, errShort
	}
	return netlink.NewAttributeDecoder(data[fixed:])
}

// addLink decodes a struct ifinfomsg with its attributes.
func (l Links) addLink(data []byte) error {
	ad, err := attributes(data, unix.SizeofIfInfomsg)
	if err != nil {
		return fmt.Errorf("link: %w", err)
	}
	link := &Link{Index: int(int32(binary.NativeEndian.Uint32(data[4:])))}
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			link.Name = ad.String()
		case unix.IFLA_MASTER:
			link.Master = int(ad.Uint32())
		case unix.IFLA_LINKINFO:
			ad.Nested(link.decodeInfo)
		case unix.IFLA_XDP:
			ad.Nested(func(xdp *netlink.AttributeDecoder) error {
				for xdp.Next() {
					link.XDP = link.XDP || xdp.Type() == unix.IFLA_XDP_ATTACHED && xdp.Uint8() != 0
				}
				return nil
			})
		}
	}
	if err := ad.Err(); err != nil {
		return fmt.Errorf("link %d: %w", link.Index, err)
	}
	l[link.Index] = link
	return nil
}

// portAttributes are the attributes in IFLA_INFO_DATA that contain the port of a tunnel, by its
// kind.
var portAttributes = map[string]uint16{
	"vxlan":   unix.IFLA_VXLAN_PORT,
	"geneve":  unix.IFLA_GENEVE_PORT,
	"bareudp": unix.IFLA_BAREUDP_PORT,
}

// decodeInfo decodes IFLA_LINKINFO. It expects the kind before the data, as the kernel sends
// them.
func (link *Link) decodeInfo(ad *netlink.AttributeDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_INFO_KIND:
			link.Kind = ad.String()
		case unix.IFLA_INFO_DATA:
			if want, ok := portAttributes[link.Kind]; ok {
				ad.Nested(func(data *netlink.AttributeDecoder) error {
					for data.Next() {
						if b := data.Bytes(); data.Type() == want && len(b) == 2 {
							link.Port = binary.BigEndian.Uint16(b)
						}
					}
					return nil
				})
			}
		}
	}
	return nil
}

// addRule decodes a struct fib_rule_hdr, which is as long as a struct rtmsg.
func (l Links) addRule(data []byte) error {
	ad, err := attributes(data, unix.SizeofRtMsg)
	if err != nil {
		return fmt.Errorf("rule: %w", err)
	}
	for ad.Next() {
		if ad.Type() != unix.FRA_IIFNAME {
			continue
		}
		name := ad.String()
		for _, link := range l {
			if link.Name == name {
				link.InRule = true
			}
		}
	}
	return ad.Err()
}

// route is the relevant part of a route.
type route struct {
	dst        netip.Prefix
	gateway    bool
	index      int
	advertised bool // a router has advertised it
}

// defaultRoutes are the destinations of routes without one in a message, by whether they are of IPv6.
var defaultRoutes = map[bool]netip.Prefix{
	false: netip.PrefixFrom(netip.IPv4Unspecified(), 0),
	true:  netip.PrefixFrom(netip.IPv6Unspecified(), 0),
}

// addRoute decodes a struct rtmsg with its attributes.
func (l Links) addRoute(data []byte) error {
	ad, err := attributes(data, unix.SizeofRtMsg)
	if err != nil {
		return fmt.Errorf("route: %w", err)
	}
	if data[7] != unix.RTN_UNICAST {
		return nil
	}
	r := route{advertised: data[5] == unix.RTPROT_RA, dst: defaultRoutes[data[0] == unix.AF_INET6]}
	var more []route // the next hops of a multipath route
	for ad.Next() {
		switch ad.Type() {
		case unix.RTA_DST:
			if a, ok := netip.AddrFromSlice(ad.Bytes()); ok {
				r.dst = netip.PrefixFrom(a, int(data[1]))
			}
		case unix.RTA_OIF:
			r.index = int(ad.Uint32())
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			r.gateway = true
		case unix.RTA_MULTIPATH:
			ad.Do(func(b []byte) (err error) {
				more, err = decodeHops(b)
				return err
			})
		}
	}
	if err := ad.Err(); err != nil {
		return fmt.Errorf("route: %w", err)
	}
	l.addToLink(r)
	for _, hop := range more {
		hop.dst, hop.advertised = r.dst, r.advertised
		l.addToLink(hop)
	}
	return nil
}

// addToLink adds r to its link.
func (l Links) addToLink(r route) {
	link := l[r.index]
	switch {
	case link == nil:
	case r.dst.IsSingleIP():
		link.Hosts = append(link.Hosts, r.dst.Addr())
		if !r.gateway && !r.advertised {
			link.Direct = append(link.Direct, r.dst.Addr())
		}
		link.OnLink = true
	case r.gateway || r.dst.Bits() == 0:
		link.Gateway = link.Gateway || !r.advertised
		link.Gatewayed = append(link.Gatewayed, r.dst)
	case !r.dst.Addr().IsLinkLocalUnicast() && !r.dst.Addr().IsMulticast():
		link.OnLink = true
		link.Networks = append(link.Networks, r.dst)
	}
}

// sizeofRtNexthop is the size of struct rtnexthop, linux/rtnetlink.h.
const sizeofRtNexthop = 8

// decodeHops decodes a list of struct rtnexthop, each with its attributes.
func decodeHops(b []byte) ([]route, error) {
	var hops []route
	for len(b) > 0 {
		if len(b) < sizeofRtNexthop {
			return nil, errShort
		}
		n := int(binary.NativeEndian.Uint16(b))
		if n < sizeofRtNexthop || n > len(b) {
			return nil, errShort
		}
		ad, err := netlink.NewAttributeDecoder(b[sizeofRtNexthop:n])
		if err != nil {
			return nil, err
		}
		hop := route{index: int(int32(binary.NativeEndian.Uint32(b[4:])))}
		for ad.Next() {
			hop.gateway = hop.gateway || ad.Type() == unix.RTA_GATEWAY || ad.Type() == unix.RTA_VIA
		}
		if err := ad.Err(); err != nil {
			return nil, err
		}
		hops = append(hops, hop)
		b = b[min((n+3)&^3, len(b)):]
	}
	return hops, nil
}
