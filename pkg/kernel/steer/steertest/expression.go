package steertest

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"
)

// tokens is the rest of a rule that is not evaluated yet.
type tokens []string

// at returns the i-th token, which is empty beyond the end.
func (t tokens) at(i int) string {
	if i < len(t) {
		return t[i]
	}
	return ""
}

func (t tokens) skip(n int) tokens { return t[min(n, len(t)):] }

// starts reports whether t begins with the tokens of s, where * stands for any token.
func (t tokens) starts(s string) bool {
	for i, want := range strings.Fields(s) {
		if got := t.at(i); got == "" || want != "*" && got != want {
			return false
		}
	}
	return true
}

// expression is a kind of match or statement. begins are its first tokens, where * stands for any
// token. evaluate returns the tokens after it.
type expression struct {
	begins   string
	evaluate func(*walk, tokens) (matched bool, rest tokens, err error)
}

// expressions are the expressions in the rules of this module, as nft lists them. The first one that
// fits is evaluated.
var expressions = []expression{
	{"counter name *", func(_ *walk, t tokens) (bool, tokens, error) { return true, t.skip(3), nil }},
	{"meta mark set meta mark & *", (*walk).setMark},
	{"meta mark set meta mark | *", (*walk).setMark},
	{"meta mark & * != 0", (*walk).mark},
	{"meta mark & * == *", (*walk).mark},
	{"tcp flags & * != *", (*walk).tcpFlags},
	{"udp dport *", (*walk).udpPort},
	{"meta l4proto *", func(w *walk, t tokens) (bool, tokens, error) { return w.transport(t.skip(2)) }},
	{"meta nfproto *", func(w *walk, t tokens) (bool, tokens, error) { return w.protocol(t.skip(2)) }},
	{"iifname *", func(w *walk, t tokens) (bool, tokens, error) { return w.input(t.skip(1)) }},
	{"oifname *", func(w *walk, t tokens) (bool, tokens, error) { return w.link(t.skip(1), w.packet.Output) }},
	fact("oif != 0", func(w *walk) bool { return w.hook == knftables.PostroutingHook }),
	fact("iif != 0", (*walk).hasInput),
	fact("iif 0", func(w *walk) bool { return !w.hasInput() }),
	fact("fib saddr type != local", func(w *walk) bool { return !w.packet.SrcLocal }),
	fact("fib saddr type local", func(w *walk) bool { return w.packet.SrcLocal }),
	fact("fib saddr . iif oif missing", func(w *walk) bool { return w.packet.NoWayBack }),
	fact("fib saddr type { broadcast, multicast }", func(w *walk) bool { return isToMany(w.packet.Src) }),
	fact("fib daddr type { broadcast, multicast }", func(w *walk) bool { return isToMany(w.packet.Dst) }),
	fact("fib daddr type unicast", func(w *walk) bool { return !isToMany(w.packet.Dst) && !w.packet.ToHost }),
	fact("fib daddr type != local", func(w *walk) bool { return !w.packet.ToHost }),
	{"ct original * saddr . ct reply * saddr *", (*walk).connectionEnds},
	{"ct original * saddr *", (*walk).connectionSource},
	{"ct reply * saddr *", (*walk).connectionSource},
	{"ct", (*walk).conntrack},
	{"icmpv6 type", (*walk).icmpv6Type},
	{"ip6 hoplimit *", (*walk).hopLimit},
	{"update * { * * limit rate * burst * packets }", (*walk).limit},
	{"update * { * saddr . * daddr . meta l4proto . th sport . th dport timeout * }", (*walk).record},
	{"* saddr . * daddr . meta l4proto . th sport . th dport *", (*walk).ends},
	{"* daddr . * saddr . meta l4proto . th dport . th sport *", (*walk).ends},
	{"* saddr . * daddr . meta l4proto . th dport *", (*walk).sent},
	{"* daddr . * saddr . meta l4proto . th sport *", (*walk).answered},
	{"* saddr . * daddr . * * . th dport *", (*walk).class},
	{"add * {", (*walk).add},
	{"* * . th * *", (*walk).addressAndPort},
	{"ip protocol *", (*walk).nextHeader},
	{"ip6 nexthdr *", (*walk).nextHeader},
	{"ip *", (*walk).address},
	{"ip6 *", (*walk).address},
}

// fact returns an expression whose value depends only on the packet and the hook.
func fact(text string, holds func(*walk) bool) expression {
	length := len(strings.Fields(text))
	return expression{text, func(w *walk, t tokens) (bool, tokens, error) { return holds(w), t.skip(length), nil }}
}

// expression evaluates the match or statement at the start of t and returns the tokens after it.
func (w *walk) expression(t tokens) (matched bool, rest tokens, err error) {
	for _, e := range expressions {
		if t.starts(e.begins) {
			return e.evaluate(w, t)
		}
	}
	return false, nil, fmt.Errorf("unknown expression %q", strings.Join(t, " "))
}

// setMark evaluates "meta mark set meta mark", followed by "& N", "| N" or both.
func (w *walk) setMark(t tokens) (bool, tokens, error) {
	var errs []error
	for t = t.skip(5); t.at(0) == "&" || t.at(0) == "|"; t = t.skip(2) {
		n, err := number(t.at(1))
		errs = append(errs, err)
		if t.at(0) == "&" {
			w.packet.Mark &= n
		} else {
			w.packet.Mark |= n
		}
	}
	return true, t, errors.Join(errs...)
}

// mark evaluates "meta mark & MASK" with == or !=.
func (w *walk) mark(t tokens) (bool, tokens, error) {
	mask, err := number(t.at(3))
	want, err2 := number(t.at(5))
	equal := w.packet.Mark&mask == want
	return equal == (t.at(4) == "=="), t.skip(6), errors.Join(err, err2)
}

func (w *walk) tcpFlags(t tokens) (bool, tokens, error) {
	mask, err := number(t.at(3))
	other, err2 := number(t.at(5))
	return w.packet.Proto == "tcp" && uint32(w.packet.flags())&mask != other, t.skip(6), errors.Join(err, err2)
}

// udpPort evaluates "udp dport" with a number or a set.
func (w *walk) udpPort(t tokens) (bool, tokens, error) {
	port, isUDP := strconv.Itoa(int(w.packet.DstPort)), w.packet.Proto == "udp"
	set, isSet := strings.CutPrefix(t.at(2), "@")
	if !isSet {
		return isUDP && port == t.at(2), t.skip(3), nil
	}
	matched, err := w.hasElement(set, port)
	return isUDP && matched, t.skip(3), err
}

func (w *walk) icmpv6Type(t tokens) (bool, tokens, error) {
	matched, rest, err := match(t.skip(2), func(s string) (bool, error) { return inRange(w.packet.ICMPv6Type, s) })
	return matched && w.packet.Proto == "ipv6-icmp", rest, err
}

func (w *walk) hopLimit(t tokens) (bool, tokens, error) {
	n, err := number(t.at(2))
	return w.packet.Src.Is6() && uint32(w.packet.HopLimit) == n, t.skip(3), err
}

func (w *walk) nextHeader(t tokens) (bool, tokens, error) {
	matched, rest, err := match(t.skip(2), func(s string) (bool, error) { return w.packet.next() == s, nil })
	return matched && w.packet.family() == t.at(0), rest, err
}

// isToMany reports whether addr is a multicast or broadcast address.
func isToMany(addr netip.Addr) bool {
	return addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// hasInput reports whether the hook knows an input interface.
func (w *walk) hasInput() bool {
	return w.packet.Forwarded && !(w.packet.Bridged && w.hook == knftables.PostroutingHook)
}

// input evaluates the tokens after "iifname".
func (w *walk) input(t tokens) (bool, tokens, error) {
	if w.packet.Bridged && w.hook == knftables.PostroutingHook {
		return w.link(t, "")
	}
	return w.link(t, w.packet.Interface)
}

// link evaluates the tokens after "iifname" or "oifname" for the interface with this name.
func (w *walk) link(t tokens, name string) (bool, tokens, error) {
	negate := t.at(0) == "!="
	if negate {
		t = t.skip(1)
	}
	set, _ := strings.CutPrefix(t.at(0), "@")
	m, err := w.hasElement(set, name)
	return m != negate, t.skip(1), err
}

// transport evaluates the tokens after "meta l4proto".
func (w *walk) transport(t tokens) (bool, tokens, error) {
	negate := t.at(0) == "!="
	if negate {
		t = t.skip(1)
	}
	if set, isSet := strings.CutPrefix(t.at(0), "@"); isSet {
		m, err := w.hasElement(set, protocolNumbers[w.packet.Proto])
		return m != negate, t.skip(1), err
	}
	m, rest, err := match(t, func(s string) (bool, error) {
		return w.packet.Proto == s || s == "icmpv6" && w.packet.Proto == "ipv6-icmp", nil
	})
	return m != negate, rest, err
}

// protocol evaluates the tokens after "meta nfproto".
func (w *walk) protocol(t tokens) (bool, tokens, error) {
	negate := t.at(0) == "!="
	if negate {
		t = t.skip(1)
	}
	set, _ := strings.CutPrefix(t.at(0), "@")
	m, err := w.hasElement(set, map[string]string{"ip": "ipv4", "ip6": "ipv6"}[w.packet.family()])
	return m != negate, t.skip(1), err
}

// addr evaluates "ip saddr" and the like. family reports whether the packet has that family.
func (w *walk) addr(t tokens) (addr netip.Addr, family bool, err error) {
	switch t.at(1) {
	case "saddr":
		addr = w.packet.Src
	case "daddr":
		addr = w.packet.Dst
	default:
		return addr, false, fmt.Errorf("unknown expression %q", strings.Join(t, " "))
	}
	return addr, addr.Is6() == (t.at(0) == "ip6"), nil
}

// limit evaluates "update @set { ip saddr limit … }" and the like.
func (w *walk) limit(t tokens) (bool, tokens, error) {
	if name, _ := strings.CutPrefix(t.at(1), "@"); w.table.Sets[name] == nil {
		return false, nil, fmt.Errorf("unknown set %s", name)
	}
	_, family, err := w.addr(t.skip(3))
	spent := w.packet.SrcSpent
	if t.at(4) == "daddr" {
		spent = w.packet.DstSpent
	}
	return family && !spent, t.skip(12), err
}

// addressAndPort evaluates "ip saddr . th sport @set" and the like.
func (w *walk) addressAndPort(t tokens) (bool, tokens, error) {
	addr, family, err := w.addr(t)
	port := w.packet.SrcPort
	switch t.at(4) {
	case "sport":
	case "dport":
		port = w.packet.DstPort
	default:
		err = fmt.Errorf("unknown expression %q", strings.Join(t, " "))
	}
	if err != nil {
		return false, nil, err
	}
	name, _ := strings.CutPrefix(t.at(5), "@")
	m, err := w.inSet(name, addr, strconv.Itoa(int(port)))
	return m && family, t.skip(6), err
}

// flags returns the TCP flags.
func (p *Packet) flags() uint8 {
	if p.TCPFlags == 0 {
		return SYN
	}
	return p.TCPFlags
}

// family returns the name of p's family in rules.
func (p *Packet) family() string {
	if p.Src.Is6() {
		return "ip6"
	}
	return "ip"
}

// confirmed reports whether p's connection is in the connection table: p is not its first packet.
func (p *Packet) confirmed() bool {
	if p.Confirmed || p.Reply || p.State == Established {
		return true
	}
	return p.State == Related && (p.Proto == "icmp" || p.Proto == "ipv6-icmp")
}

// ends returns the addresses, the protocol and the ports of p.
func (p *Packet) ends() []string {
	return []string{p.Src.String(), p.Dst.String(), p.Proto, strconv.Itoa(int(p.SrcPort)), strconv.Itoa(int(p.DstPort))}
}

// next returns the protocol in the IP header of p.
func (p *Packet) next() string {
	switch {
	case !p.Extended:
		return p.Proto
	case p.Src.Is6():
		return "hopopt"
	}
	return "ah"
}
