package steertest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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

// key evaluates "ip saddr . ip daddr . ip protocol . th dport" and the like. family reports whether
// the packet has that family.
func (w *walk) key(t tokens) (key []string, family bool, err error) {
	p := &w.packet
	next := map[string]string{"ip": "protocol", "ip6": "nexthdr"}[t.at(0)]
	if !t.starts(fmt.Sprintf("%s saddr . %[1]s daddr . %[1]s %s . th dport", t.at(0), next)) || next == "" {
		return nil, false, fmt.Errorf("unknown expression %q", strings.Join(t, " "))
	}
	return []string{p.Src.String(), p.Dst.String(), p.next(), strconv.Itoa(int(p.DstPort))}, p.family() == t.at(0), nil
}

// ends evaluates the lookup of a packet's addresses and ports in a set.
func (w *walk) ends(t tokens) (bool, tokens, error) {
	name, _ := strings.CutPrefix(t.at(14), "@")
	m, err := w.hasElement(name, w.packet.ends()...)
	return m && w.packet.family() == t.at(0), t.skip(15), err
}

// record evaluates "update @set { ENDS timeout 30s }", where ENDS are addresses and ports.
func (w *walk) record(t tokens) (bool, tokens, error) {
	name, _ := strings.CutPrefix(t.at(1), "@")
	key := w.packet.ends()
	exists, err := w.hasElement(name, key...)
	if err != nil || w.packet.family() != t.at(3) || w.packet.NoRoom && !exists {
		return false, t.skip(20), err
	}
	if set := w.table.Sets[name]; !exists {
		set.Elements = append(set.Elements, &knftables.Element{Set: name, Key: key})
	}
	return true, t.skip(20), nil
}

// class evaluates the lookup of a key in a set.
func (w *walk) class(t tokens) (bool, tokens, error) {
	key, family, err := w.key(t)
	t = t.skip(11)
	negate := t.at(0) == "!="
	if negate {
		t = t.skip(1)
	}
	name, _ := strings.CutPrefix(t.at(0), "@")
	m, err2 := w.hasElement(name, key...)
	return family && m != negate, t.skip(1), errors.Join(err, err2)
}

// add evaluates "add @set { key timeout 30s counter }".
func (w *walk) add(t tokens) (bool, tokens, error) {
	name, _ := strings.CutPrefix(t.at(1), "@")
	key, family, err := w.key(t.skip(3))
	if err != nil {
		return false, nil, err
	}
	exists, err := w.hasElement(name, key...)
	if end := t.skip(14); err == nil && !end.starts("timeout * counter }") {
		err = fmt.Errorf("unknown expression %q", strings.Join(t, " "))
	}
	if err != nil || !family || w.packet.NoRoom {
		return false, t.skip(18), err
	}
	if set := w.table.Sets[name]; !exists {
		set.Elements = append(set.Elements, &knftables.Element{Set: name, Key: key})
	}
	return true, t.skip(18), nil
}

// address evaluates "ip saddr …" and the like with a set, a list or one prefix.
func (w *walk) address(t tokens) (bool, tokens, error) {
	addr, family, err := w.addr(t)
	if err != nil {
		return false, nil, err
	}
	t = t.skip(2)
	negate := t.at(0) == "!="
	if negate {
		t = t.skip(1)
	}
	m, rest, err := match(t, func(s string) (bool, error) {
		if set, ok := strings.CutPrefix(s, "@"); ok {
			return w.inSet(set, addr)
		}
		return inPrefix(addr, s)
	})
	return family && m != negate, rest, err
}

// inSet reports whether a set has an element with addr and rest.
func (w *walk) inSet(name string, addr netip.Addr, rest ...string) (bool, error) {
	set := w.table.Sets[name]
	if set == nil {
		return false, fmt.Errorf("unknown set %s", name)
	}
	var err error
	found := slices.ContainsFunc(set.Elements, func(e *knftables.Element) bool {
		in, e2 := inPrefix(addr, e.Key[0])
		if e2 != nil {
			err = e2
		}
		return in && slices.Equal(e.Key[1:], rest)
	})
	return found, err
}

// protocolNumbers are the numbers of protocols as elements of sets.
var protocolNumbers = map[string]string{"tcp": "6", "udp": "17", "ipencap": "4", "ipv6": "41", "gre": "47"}

// hasElement reports whether a set has the element key.
func (w *walk) hasElement(name string, key ...string) (bool, error) {
	set := w.table.Sets[name]
	if set == nil {
		return false, fmt.Errorf("unknown set %s", name)
	}
	return set.FindElement(key...) != nil, nil
}

// match reports whether is holds for the value at the start of t, or for one in a list in braces.
func match(t tokens, holds func(string) (bool, error)) (bool, tokens, error) {
	if t.at(0) != "{" {
		m, err := holds(t.at(0))
		return m, t.skip(1), err
	}
	end := slices.Index(t, "}")
	if end < 0 {
		return false, nil, fmt.Errorf("unterminated list %q", strings.Join(t, " "))
	}
	for _, value := range t[1:end] {
		if m, err := holds(strings.TrimSuffix(value, ",")); m || err != nil {
			return m, t.skip(end + 1), err
		}
	}
	return false, t.skip(end + 1), nil
}

// inPrefix reports whether addr is s, or in the prefix or range s.
func inPrefix(addr netip.Addr, s string) (bool, error) {
	if low, high, ok := strings.Cut(s, "-"); ok {
		from, err := netip.ParseAddr(low)
		to, err2 := netip.ParseAddr(high)
		return from.Compare(addr) <= 0 && addr.Compare(to) <= 0, errors.Join(err, err2)
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return a == addr, nil
	}
	p, err := netip.ParsePrefix(s)
	return err == nil && p.Contains(addr), err
}

// inRange reports whether n is in "5" or "5-7".
func inRange(n uint8, s string) (bool, error) {
	low, high, ok := strings.Cut(s, "-")
	if !ok {
		high = low
	}
	a, err := number(low)
	if err != nil {
		return false, err
	}
	b, err := number(high)
	return a <= uint32(n) && uint32(n) <= b, err
}

func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 0, 32)
	return uint32(n), err
}
