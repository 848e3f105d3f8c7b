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

// tokens are the part of a rule that is not evaluated yet.
type tokens []string

// at returns an empty token beyond the end.
func (t tokens) at(i int) string {
	if i < len(t) {
		return t[i]
	}
	return ""
}

func (t tokens) skip(n int) tokens { return t[min(n, len(t)):] }

// starts reports whether t begins with the tokens of s, where * is any token.
func (t tokens) starts(s string) bool {
	for i, want := range strings.Fields(s) {
		if got := t.at(i); got == "" || want != "*" && got != want {
			return false
		}
	}
	return true
}

// expression evaluates the match or the statement at the start of t and returns the
// tokens after it.
func (w *walk) expression(t tokens) (matched bool, rest tokens, err error) {
	p := &w.packet
	switch {
	case t.starts("counter name *"):
		return true, t.skip(3), nil
	case t.starts("meta mark set meta mark & * | *"):
		kept, err := number(t.at(6))
		set, err2 := number(t.at(8))
		p.Mark = p.Mark&kept | set
		return true, t.skip(9), errors.Join(err, err2)
	case t.starts("meta mark set meta mark & *"):
		n, err := number(t.at(6))
		p.Mark &= n
		return true, t.skip(7), err
	case t.starts("meta mark set meta mark | *"):
		n, err := number(t.at(6))
		p.Mark |= n
		return true, t.skip(7), err
	case t.starts("meta mark & * != 0"):
		n, err := number(t.at(3))
		return p.Mark&n != 0, t.skip(6), err
	case t.starts("meta mark & * == *"):
		n, err := number(t.at(3))
		want, err2 := number(t.at(5))
		return p.Mark&n == want, t.skip(6), errors.Join(err, err2)
	case t.starts("tcp flags & * != *"):
		mask, err := number(t.at(3))
		other, err2 := number(t.at(5))
		return p.Proto == "tcp" && uint32(p.flags())&mask != other, t.skip(6), errors.Join(err, err2)
	case t.starts("udp dport *") && !strings.HasPrefix(t.at(2), "@"):
		return p.Proto == "udp" && strconv.Itoa(int(p.DstPort)) == t.at(2), t.skip(3), nil
	case t.starts("udp dport *"):
		set, _ := strings.CutPrefix(t.at(2), "@")
		m, err := w.hasElement(set, strconv.Itoa(int(p.DstPort)))
		return m && p.Proto == "udp", t.skip(3), err
	case t.starts("meta l4proto *") && strings.HasPrefix(t.at(2), "@"):
		m, err := w.hasElement(t.at(2)[1:], protocolNumbers[p.Proto])
		return m, t.skip(3), err
	case t.starts("meta l4proto *"):
		return w.transport(t.skip(2))
	case t.starts("meta nfproto *"):
		return w.protocol(t.skip(2))
	case t.starts("iifname *"):
		return w.input(t.skip(1))
	case t.starts("oifname *"):
		return w.link(t.skip(1), p.Output)
	case t.starts("oif != 0"):
		return w.hook == knftables.PostroutingHook, t.skip(3), nil
	case t.starts("iif != 0"):
		return p.Forwarded && !(p.Bridged && w.hook == knftables.PostroutingHook), t.skip(3), nil
	case t.starts("fib saddr type != local"):
		return !p.SrcLocal, t.skip(5), nil
	case t.starts("fib saddr type local"):
		return p.SrcLocal, t.skip(4), nil
	case t.starts("fib saddr . iif oif missing"):
		return p.NoWayBack, t.skip(6), nil
	case t.starts("fib saddr type { broadcast, multicast }"):
		return isToMany(p.Src), t.skip(7), nil
	case t.starts("fib daddr type { broadcast, multicast }"):
		return isToMany(p.Dst), t.skip(7), nil
	case t.starts("fib daddr type unicast"):
		return !isToMany(p.Dst) && !p.ToHost, t.skip(4), nil
	case t.starts("fib daddr type != local"):
		return !p.ToHost, t.skip(5), nil
	case t.starts("ct"):
		return w.conntrack(t)
	case t.starts("icmpv6 type"):
		m, rest, err := match(t.skip(2), func(s string) (bool, error) { return inRange(p.ICMPv6Type, s) })
		return m && p.Proto == "ipv6-icmp", rest, err
	case t.starts("ip6 hoplimit *"):
		n, err := number(t.at(2))
		return p.Src.Is6() && uint32(p.HopLimit) == n, t.skip(3), err
	case t.starts("update * { * * limit rate * burst * packets }"):
		return w.limit(t)
	case t.starts("* saddr . * daddr . * * . th dport *"):
		return w.class(t)
	case t.starts("add * {"):
		return w.add(t)
	case t.starts("* * . th * *"):
		return w.addressAndPort(t)
	case t.starts("ip protocol *"), t.starts("ip6 nexthdr *"):
		m, rest, err := match(t.skip(2), func(s string) (bool, error) { return p.next() == s, nil })
		return m && p.family() == t.at(0), rest, err
	case t.starts("ip *"), t.starts("ip6 *"):
		return w.address(t)
	}
	return false, nil, fmt.Errorf("unknown expression %q", strings.Join(t, " "))
}

// isToMany reports whether packets to addr are for more than one host.
func isToMany(addr netip.Addr) bool {
	return addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// input evaluates what follows "iifname".
func (w *walk) input(t tokens) (bool, tokens, error) {
	if w.packet.Bridged && w.hook == knftables.PostroutingHook {
		return w.link(t, "")
	}
	return w.link(t, w.packet.Interface)
}

// link evaluates what follows "iifname" or "oifname", for the interface of this name.
func (w *walk) link(t tokens, name string) (bool, tokens, error) {
	negate := t.at(0) == "!="
	if negate {
		t = t.skip(1)
	}
	set, _ := strings.CutPrefix(t.at(0), "@")
	m, err := w.hasElement(set, name)
	return m != negate, t.skip(1), err
}

// transport evaluates what follows "meta l4proto".
func (w *walk) transport(t tokens) (bool, tokens, error) {
	negate := t.at(0) == "!="
	if negate {
		t = t.skip(1)
	}
	m, rest, err := match(t, func(s string) (bool, error) {
		return w.packet.Proto == s || s == "icmpv6" && w.packet.Proto == "ipv6-icmp", nil
	})
	return m != negate, rest, err
}

// protocol evaluates what follows "meta nfproto".
func (w *walk) protocol(t tokens) (bool, tokens, error) {
	negate := t.at(0) == "!="
	if negate {
		t = t.skip(1)
	}
	set, _ := strings.CutPrefix(t.at(0), "@")
	m, err := w.hasElement(set, map[string]string{"ip": "ipv4", "ip6": "ipv6"}[w.packet.family()])
	return m != negate, t.skip(1), err
}

// conntrack evaluates ct expressions. Those other than ct state do not match packets
// without a connection.
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
	case t.starts("ct direction *"):
		return tracked && direction == t.at(2), t.skip(3), nil
	case t.starts("ct mark & * != 0"):
		n, err := number(t.at(3))
		return tracked && p.CTMark&n != 0, t.skip(6), err
	case t.starts("ct mark & * == 0"):
		n, err := number(t.at(3))
		return tracked && p.CTMark&n == 0, t.skip(6), err
	case t.starts("ct mark set ct mark | *"):
		n, err := number(t.at(6))
		if tracked {
			p.CTMark |= n
		}
		return tracked, t.skip(7), err // without a connection the rule ends
	}
	return false, nil, fmt.Errorf("unknown expression %q", strings.Join(t, " "))
}

// addr evaluates "ip saddr" and the like. family reports whether the packet is of the
// family.
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

// flags returns the flags of TCP.
func (p *Packet) flags() uint8 {
	if p.TCPFlags == 0 {
		return SYN
	}
	return p.TCPFlags
}

// family returns the family of p as rules write it.
func (p *Packet) family() string {
	if p.Src.Is6() {
		return "ip6"
	}
	return "ip"
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

// key returns the addresses, the protocol and the port that "ip saddr . ip daddr . ip protocol .
// th dport" and the like have of the packet. family reports whether it is of the family.
func (w *walk) key(t tokens) (key []string, family bool, err error) {
	p := &w.packet
	next := map[string]string{"ip": "protocol", "ip6": "nexthdr"}[t.at(0)]
	if !t.starts(fmt.Sprintf("%s saddr . %[1]s daddr . %[1]s %s . th dport", t.at(0), next)) || next == "" {
		return nil, false, fmt.Errorf("unknown expression %q", strings.Join(t, " "))
	}
	return []string{p.Src.String(), p.Dst.String(), p.next(), strconv.Itoa(int(p.DstPort))}, p.family() == t.at(0), nil
}

// class evaluates a key and the set that it is looked up in.
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
	there, err := w.hasElement(name, key...)
	if end := t.skip(14); err == nil && !end.starts("timeout * counter }") {
		err = fmt.Errorf("unknown expression %q", strings.Join(t, " "))
	}
	if err != nil || !family || w.packet.NoRoom {
		return false, t.skip(18), err
	}
	if set := w.table.Sets[name]; !there {
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

// inSet reports whether a set has an element of addr concatenated with rest.
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

// protocolNumbers are the numbers of protocols in sets.
var protocolNumbers = map[string]string{"ipencap": "4", "ipv6": "41", "gre": "47"}

// hasElement reports whether a set has the element that is written as key.
func (w *walk) hasElement(name string, key ...string) (bool, error) {
	set := w.table.Sets[name]
	if set == nil {
		return false, fmt.Errorf("unknown set %s", name)
	}
	return set.FindElement(key...) != nil, nil
}

// match evaluates is for the value at the start of t, or for each of a list in braces.
func match(t tokens, is func(string) (bool, error)) (bool, tokens, error) {
	if t.at(0) != "{" {
		m, err := is(t.at(0))
		return m, t.skip(1), err
	}
	end := slices.Index(t, "}")
	if end < 0 {
		return false, nil, fmt.Errorf("unterminated list %q", strings.Join(t, " "))
	}
	for _, value := range t[1:end] {
		if m, err := is(strings.TrimSuffix(value, ",")); m || err != nil {
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
