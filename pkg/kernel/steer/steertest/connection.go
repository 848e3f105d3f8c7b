package steertest

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// conntrack evaluates ct expressions. Except for ct state they do not match packets without a
// connection.
func (w *walk) conntrack(t tokens) (bool, tokens, error) {
	p := &w.packet
	tracked := p.State != Invalid && p.State != Untracked
	direction := "original"
	if p.Reply {
		direction = "reply"
	}
	switch {
	case t.starts("ct state != *"):
		return t.at(3) != string(p.State), t.skip(4), nil
	case t.starts("ct state *"):
		return slices.Contains(strings.Split(t.at(2), ","), string(p.State)), t.skip(3), nil
	case t.starts("ct status dnat"):
		return tracked && p.DNAT, t.skip(3), nil
	case t.starts("ct status & confirmed == 0"):
		return tracked && !p.confirmed(), t.skip(6), nil
	case t.starts("ct status confirmed"):
		return tracked && p.confirmed(), t.skip(3), nil
	case t.starts("ct direction *"):
		return tracked && direction == t.at(2), t.skip(3), nil
	case t.starts("ct mark"):
		return w.ctMark(t, tracked)
	}
	return false, nil, fmt.Errorf("unknown expression %q", strings.Join(t, " "))
}

// ctMark evaluates expressions of the connection mark, and statements that set it. A rule ends there for a
// packet without a connection.
func (w *walk) ctMark(t tokens, tracked bool) (bool, tokens, error) {
	if t.starts("ct mark & *") {
		n, err := number(t.at(3))
		isSet := w.packet.CTMark&n != 0
		return tracked && isSet == (t.at(4) == "!="), t.skip(6), err
	}
	n, err := number(t.at(6))
	switch {
	case t.starts("ct mark set ct mark | *"):
		n |= w.packet.CTMark
	case t.starts("ct mark set ct mark & *"):
		n &= w.packet.CTMark
	default:
		return false, nil, fmt.Errorf("unknown expression %q", strings.Join(t, " "))
	}
	if tracked {
		w.packet.CTMark = n
	}
	return tracked, t.skip(7), err
}

// connectionSource evaluates "ct original ip saddr @set" and the like.
func (w *walk) connectionSource(t tokens) (bool, tokens, error) {
	addr := w.packet.Dst
	if (t.at(1) == "reply") == w.packet.Reply {
		addr = w.packet.Src
	}
	set, _ := strings.CutPrefix(t.at(4), "@")
	m, err := w.inSet(set, addr)
	return m && w.packet.family() == t.at(2), t.skip(5), err
}

// connectionEnds evaluates "ct original ip saddr . ct reply ip saddr @set" and the like.
func (w *walk) connectionEnds(t tokens) (bool, tokens, error) {
	client, server := w.packet.Src, w.packet.Dst
	if w.packet.Reply {
		client, server = server, client
	}
	name, _ := strings.CutPrefix(t.at(9), "@")
	m, err := w.hasElement(name, client.String(), server.String())
	return m && w.packet.family() == t.at(2), t.skip(10), err
}

// sent evaluates "ip saddr . ip daddr . meta l4proto . th dport @set" and the like.
func (w *walk) sent(t tokens) (bool, tokens, error) {
	return w.toServer(t, w.packet.Src, w.packet.Dst, w.packet.DstPort)
}

// answered evaluates "ip daddr . ip saddr . meta l4proto . th sport @set" and the like.
func (w *walk) answered(t tokens) (bool, tokens, error) {
	return w.toServer(t, w.packet.Dst, w.packet.Src, w.packet.SrcPort)
}

func (w *walk) toServer(t tokens, client, server netip.Addr, port uint16) (bool, tokens, error) {
	name, _ := strings.CutPrefix(t.at(11), "@")
	m, err := w.hasElement(name, client.String(), server.String(), protocolNumbers[w.packet.Proto], strconv.Itoa(int(port)))
	return m && w.packet.family() == t.at(0), t.skip(12), err
}
