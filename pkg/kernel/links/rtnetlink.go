package links

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// rtnetlink reads from the kernel, in the network namespace of the first read. It keeps the socket: new
// interfaces of pods must not wait for a file descriptor while clients of the agent have all of them.
type rtnetlink struct {
	mu   sync.Mutex
	conn *netlink.Conn // nil before the first read, and after an error
}

// groups is the bit set of multicast groups to join.
const groups = 1<<(unix.RTNLGRP_LINK-1) |
	1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1) |
	1<<(unix.RTNLGRP_IPV4_RULE-1) | 1<<(unix.RTNLGRP_IPV6_RULE-1)

// read lists links before routes and rules. If a link is added in between, its notification
// triggers another read.
func (r *rtnetlink) read() (Links, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conn == nil {
		conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
		if err != nil {
			return nil, fmt.Errorf("open rtnetlink: %w", err)
		}
		r.conn = conn
	}
	links, err := readLinks(r.conn)
	if err != nil {
		r.conn.Close() // it may have unread answers
		r.conn = nil
	}
	return links, err
}

// Interfaces reads the links of the network namespace without their routes and rules.
func Interfaces() (Links, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	defer conn.Close()
	links := Links{}
	return links, links.list(conn, linkDump)
}

func readLinks(conn *netlink.Conn) (Links, error) {
	links := Links{}
	for _, d := range []dump{
		linkDump,
		{"IPv4 routes", unix.RTM_GETROUTE, unix.AF_INET, unix.SizeofRtMsg, Links.addRoute},
		{"IPv6 routes", unix.RTM_GETROUTE, unix.AF_INET6, unix.SizeofRtMsg, Links.addRoute},
		{"IPv4 rules", unix.RTM_GETRULE, unix.AF_INET, unix.SizeofRtMsg, Links.addRule},
		{"IPv6 rules", unix.RTM_GETRULE, unix.AF_INET6, unix.SizeofRtMsg, Links.addRule},
	} {
		if err := links.list(conn, d); err != nil {
			return nil, err
		}
	}
	return links, nil
}

// dump is a request for all objects of a kind.
type dump struct {
	what   string
	kind   netlink.HeaderType
	family uint8
	size   int // of the fixed part of a request
	add    func(l Links, data []byte) error
}

var linkDump = dump{"links", unix.RTM_GETLINK, unix.AF_UNSPEC, unix.SizeofIfInfomsg, Links.addLink}

func (l Links) list(conn *netlink.Conn, d dump) error {
	request := make([]byte, d.size)
	request[0] = d.family
	_, err := conn.Send(netlink.Message{
		Header: netlink.Header{Type: d.kind, Flags: netlink.Request | netlink.Dump},
		Data:   request,
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", d.what, err)
	}
	for m, err := range conn.ReceiveIter() {
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
			return nil // a kernel without IPv6 or without rules
		}
		if err == nil {
			err = d.add(l, m.Data)
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", d.what, err)
		}
	}
	return nil
}

// watch ignores the contents of notifications.
func (*rtnetlink) watch(ctx context.Context, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups})
	if err != nil {
		return fmt.Errorf("subscribe to rtnetlink: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	changed() // the changes before the subscription
	for {
		if _, err := conn.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("receive from rtnetlink: %w", err)
		}
		changed()
	}
}
