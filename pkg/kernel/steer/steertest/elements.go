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
	p := w.packet
	if t.at(1) == "daddr" {
		p.Src, p.Dst, p.SrcPort, p.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
	}
	m, err := w.hasElement(name, p.ends()...)
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
