package steertest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// known has the encoded rules by text, because a Fake has only the text.
var known sync.Map // of string to rule.Encoded

// Learn makes rules known to Trace, which evaluates the expressions that the kernel gets.
func Learn(rules ...rule.Rule) {
	for _, r := range rules {
		known.Store(r.String(), r.Encode(rule.Options{}))
	}
}

// attributes are the attributes of an expression.
type attributes map[uint16][]byte

func parse(b []byte) attributes {
	all := make(attributes)
	for kind, value := range nlattr.All(b) {
		all[kind] = value
	}
	return all
}

func (a attributes) number(kind uint16) uint32 {
	if len(a[kind]) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a[kind])
}

func (a attributes) text(kind uint16) string { return string(bytes.TrimRight(a[kind], "\x00")) }

func (a attributes) data(kind uint16) []byte { return parse(a[kind])[unix.NFTA_DATA_VALUE] }

// registers are the registers of the kernel.
type registers [64]byte

// at returns the content from a register on.
func (r *registers) at(register uint32) []byte {
	if register >= unix.NFT_REG32_00 {
		return r[4*(register-unix.NFT_REG32_00):]
	}
	return r[16*(register-unix.NFT_REG_1):]
}

func (r *registers) store(register uint32, value []byte) {
	to := r.at(register)
	clear(to[:(len(value)+3)/4*4])
	copy(to, value)
}

// outcome is what an expression does. The zero value is to go on with the next one.
type outcome struct {
	verdict Verdict
	leave   bool   // the rule ends without a verdict
	code    int32  // NFT_JUMP, NFT_GOTO or NFT_RETURN
	chain   string // to which it jumps
}

var noMatch = outcome{leave: true}

// expressions evaluates the expressions of a rule.
func (w *walk) expressions(r rule.Encoded) (outcome, error) {
	w.sets, w.registers = r.Sets, registers{}
	for _, b := range nlattr.All(r.Exprs) {
		e := parse(b)
		o, err := w.expression(e.text(unix.NFTA_EXPR_NAME), parse(e[unix.NFTA_EXPR_DATA]))
		if err != nil || o != (outcome{}) {
			return o, err
		}
	}
	return outcome{}, nil
}

func (w *walk) expression(name string, a attributes) (outcome, error) {
	switch name {
	case "meta":
		return w.meta(a)
	case "ct":
		return w.conntrack(a)
	case "payload":
		w.source = a.number(unix.NFTA_PAYLOAD_OFFSET) == w.packet.header().source
		w.registers.store(a.number(unix.NFTA_PAYLOAD_DREG), w.packet.field(a))
	case "fib":
		w.registers.store(a.number(unix.NFTA_FIB_DREG), native(w.packet.route(a.number(unix.NFTA_FIB_FLAGS))))
	case "bitwise":
		w.bitwise(a)
	case "cmp":
		return matched(w.compare(a)), nil
	case "lookup":
		in, err := w.lookup(a)
		return matched(in != (a.number(unix.NFTA_LOOKUP_FLAGS) != 0)), err
	case "dynset":
		ok, err := w.update(a)
		return matched(ok), err
	case "objref":
	case "queue":
		return outcome{verdict: Queue}, nil
	case "reject":
		return outcome{verdict: Reject}, nil
	case "immediate":
		v := parse(parse(a[unix.NFTA_IMMEDIATE_DATA])[unix.NFTA_DATA_VERDICT])
		return verdictOf(int32(v.number(unix.NFTA_VERDICT_CODE)), v.text(unix.NFTA_VERDICT_CHAIN)), nil
	default:
		return outcome{}, fmt.Errorf("unknown expression %s", name)
	}
	return outcome{}, nil
}

func matched(ok bool) outcome { return outcome{leave: !ok} }

func verdictOf(code int32, chain string) outcome {
	switch code {
	case 0:
		return outcome{verdict: Drop}
	case 1:
		return outcome{verdict: Accept}
	}
	return outcome{code: code, chain: chain}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func flag(set bool) uint32 {
	if set {
		return 1
	}
	return 0
}

func (w *walk) meta(a attributes) (outcome, error) {
	p := &w.packet
	if _, set := a[unix.NFTA_META_SREG]; set {
		p.Mark = binary.NativeEndian.Uint32(w.registers.at(a.number(unix.NFTA_META_SREG)))
		return outcome{}, nil
	}
	var value []byte
	switch key := a.number(unix.NFTA_META_KEY); key {
	case unix.NFT_META_MARK:
		value = native(p.Mark)
	case unix.NFT_META_NFPROTO:
		value = []byte{p.header().protocol}
	case unix.NFT_META_L4PROTO:
		value = []byte{protocols[p.Proto]}
	case unix.NFT_META_IIF:
		value = native(flag(w.hasInput()))
	case unix.NFT_META_OIF:
		value = native(flag(w.hook == knftables.PostroutingHook))
	case unix.NFT_META_IIFNAME:
		value = make([]byte, unix.IFNAMSIZ)
		if !p.Bridged || w.hook != knftables.PostroutingHook {
			copy(value, p.Interface)
		}
	case unix.NFT_META_OIFNAME:
		value = make([]byte, unix.IFNAMSIZ)
		copy(value, p.Output)
	default:
		return outcome{}, fmt.Errorf("unknown key %d of meta", key)
	}
	w.registers.store(a.number(unix.NFTA_META_DREG), value)
	return outcome{}, nil
}

// hasInput reports whether the hook knows an input interface.
func (w *walk) hasInput() bool {
	return w.packet.Forwarded && !(w.packet.Bridged && w.hook == knftables.PostroutingHook)
}

// states are the bits of conntrack states.
var states = map[State]uint32{Invalid: 1, Established: 2, Related: 4, New: 8, Untracked: 64}

// conntrack ends a rule for a packet without a connection, except for the state.
func (w *walk) conntrack(a attributes) (outcome, error) {
	p := &w.packet
	key := a.number(unix.NFTA_CT_KEY)
	if key == unix.NFT_CT_STATE {
		w.registers.store(a.number(unix.NFTA_CT_DREG), native(states[p.State]))
		return outcome{}, nil
	}
	if p.State == Invalid || p.State == Untracked {
		return noMatch, nil
	}
	if _, set := a[unix.NFTA_CT_SREG]; set {
		p.CTMark = binary.NativeEndian.Uint32(w.registers.at(a.number(unix.NFTA_CT_SREG)))
		return outcome{}, nil
	}
	var value []byte
	switch key {
	case unix.NFT_CT_MARK:
		value = native(p.CTMark)
	case unix.NFT_CT_STATUS:
		value = native(flag(p.confirmed())<<3 | flag(p.DNAT)<<5)
	case unix.NFT_CT_DIRECTION:
		value = []byte{byte(flag(p.Reply))}
	case ctSourceIPv4, ctSourceIPv6:
		if p.Src.Is6() != (key == ctSourceIPv6) {
			return noMatch, nil
		}
		value = p.Dst.AsSlice()
		if (a[unix.NFTA_CT_DIRECTION][0] == 1) == p.Reply {
			value = p.Src.AsSlice()
		}
	default:
		return outcome{}, fmt.Errorf("unknown key %d of ct", key)
	}
	w.registers.store(a.number(unix.NFTA_CT_DREG), value)
	return outcome{}, nil
}

// Keys of linux/netfilter/nf_tables.h.
const (
	ctSourceIPv4 = 19 // NFT_CT_SRC_IP
	ctSourceIPv6 = 21 // NFT_CT_SRC_IP6
)

func (w *walk) bitwise(a attributes) {
	value := slices.Clone(w.registers.at(a.number(unix.NFTA_BITWISE_SREG))[:a.number(unix.NFTA_BITWISE_LEN)])
	mask, xor := a.data(unix.NFTA_BITWISE_MASK), a.data(unix.NFTA_BITWISE_XOR)
	for i := range value {
		value[i] = value[i]&mask[i] ^ xor[i]
	}
	w.registers.store(a.number(unix.NFTA_BITWISE_DREG), value)
}

func (w *walk) compare(a attributes) bool {
	want := a.data(unix.NFTA_CMP_DATA)
	order := bytes.Compare(w.registers.at(a.number(unix.NFTA_CMP_SREG))[:len(want)], want)
	switch a.number(unix.NFTA_CMP_OP) {
	case unix.NFT_CMP_EQ:
		return order == 0
	case unix.NFT_CMP_NEQ:
		return order != 0
	case unix.NFT_CMP_LTE:
		return order <= 0
	}
	return order >= 0 // NFT_CMP_GTE
}

func (w *walk) lookup(a attributes) (bool, error) {
	key := w.registers.at(a.number(unix.NFTA_LOOKUP_SREG))
	name := a.text(unix.NFTA_LOOKUP_SET)
	if name != rule.AnonymousName {
		return w.inSet(name, key)
	}
	in := false
	for _, e := range w.sets[a.number(unix.NFTA_LOOKUP_SET_ID)].Elements {
		switch order := bytes.Compare(e.Key, key[:len(e.Key)]); {
		case order == 0:
			return !e.IntervalEnd, nil
		case order < 0:
			in = !e.IntervalEnd && w.sets[a.number(unix.NFTA_LOOKUP_SET_ID)].Interval
		}
	}
	return in, nil
}

// inSet reports whether a named set has the key at the beginning of b.
func (w *walk) inSet(name string, b []byte) (found bool, err error) {
	set := w.table.Sets[name]
	if set == nil {
		return false, fmt.Errorf("unknown set %s", name)
	}
	typ, err := rule.ParseType(set.Type)
	if err != nil {
		return false, err
	}
	key := b[:typ.Len()]
	for _, e := range set.Elements {
		if slices.Contains(set.Flags, knftables.IntervalFlag) {
			first, end, err := typ.Interval(e.Key[0])
			if err != nil {
				return false, err
			}
			found = found || bytes.Compare(first, key) <= 0 && (end == nil || bytes.Compare(key, end) < 0)
			continue
		}
		encoded, err := typ.Key(e.Key)
		if err != nil {
			return false, err
		}
		found = found || bytes.Equal(encoded, key)
	}
	return found, nil
}

// update adds an element, unless it has a limit. It reports whether there is room or the limit permits the
// packet.
func (w *walk) update(a attributes) (bool, error) {
	name, key := a.text(unix.NFTA_DYNSET_SET_NAME), w.registers.at(a.number(unix.NFTA_DYNSET_SREG_KEY))
	exists, err := w.inSet(name, key)
	if err != nil {
		return false, err
	}
	if parse(a[unix.NFTA_DYNSET_EXPR]).text(unix.NFTA_EXPR_NAME) == "limit" {
		if w.source {
			return !w.packet.SrcSpent, nil
		}
		return !w.packet.DstSpent, nil
	}
	if set := w.table.Sets[name]; !exists && !w.packet.NoRoom {
		set.Elements = append(set.Elements, &knftables.Element{Set: name, Key: decode(set.Type, key)})
	}
	return exists || !w.packet.NoRoom, nil
}

// decode returns the parts of a concatenated key.
func decode(typ string, key []byte) (parts []string) {
	for part := range strings.SplitSeq(typ, " . ") {
		size := 4
		switch part {
		case "inet_proto":
			parts = append(parts, strconv.Itoa(int(key[0])))
		case "inet_service":
			parts = append(parts, strconv.Itoa(int(binary.BigEndian.Uint16(key))))
		case "ipv6_addr":
			size = 16
			fallthrough
		default:
			addr, _ := netip.AddrFromSlice(key[:size])
			parts = append(parts, addr.String())
		}
		key = key[size:]
	}
	return parts
}
