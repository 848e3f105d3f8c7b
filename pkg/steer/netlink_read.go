package steer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/nlattr"
)

// readAttempts bounds how often the table is read while others commit.
const readAttempts = 10

// read reads again while others commit, because a list that comes in several
// messages could miss entries. The last reading is taken as it is: the commit that
// made it stale is notified.
func (k netlinkKernel) read(ctx context.Context) (*held, error) {
	conn, err := k.conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	before, err := generation(conn)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		h, err := k.readOnce(conn)
		after, errAfter := generation(conn)
		switch {
		case errAfter != nil:
			return nil, errAfter
		case before != after && attempt < readAttempts:
			before = after
			continue
		case err != nil:
			return nil, err
		}
		h.generation = before
		return h, nil
	}
}

// readOnce reads the table as it is now.
func (k netlinkKernel) readOnce(conn *netlink.Conn) (*held, error) {
	r := reading{conn: conn, chains: k.chains, sound: true, names: make(map[string][]string),
		base: base{objects: make(map[string]string), rules: make(map[string][]string)}}
	switch err := r.table(); {
	case errors.Is(err, unix.ENOENT):
		return emptyTable(), nil
	case err != nil:
		return nil, fmt.Errorf("table: %w", err)
	}
	for _, list := range []func() error{r.listChains, r.listSets, r.listObjects, r.listRules} {
		if err := list(); err != nil {
			return nil, err
		}
	}
	if !r.sound || !isOurs(k.chains, r.names) {
		return &held{layout: foreign}, nil
	}
	h := &held{layout: ours, base: r.base, sets: make(contents, len(setSpecs))}
	for _, spec := range setSpecs {
		var err error
		if h.sets[spec.name], err = readSet(conn, spec); err != nil {
			return nil, fmt.Errorf("set %s: %w", spec.name, err)
		}
	}
	return h, nil
}

// reading collects what a table is made of.
type reading struct {
	conn   *netlink.Conn
	chains []chain // that should be there
	names  map[string][]string
	base   base
	sound  bool // false: something that cannot be put right but by a new table
}

func (r *reading) table() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETTABLE, 0, ofTable)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if number(attribute(a, unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0 {
			r.sound = false // no packet meets a chain of it
		}
		r.add("table", TableName, attribute(a, nftaTableHandle))
	}
	return nil
}

// add notes an object. The kernel gives no handle of an object twice in the life of
// a table, nor that of a table twice in the life of a network namespace.
func (r *reading) add(kind, name string, handle []byte) {
	r.base.objects[kind+" "+name] = fmt.Sprint(number(handle))
}

func (r *reading) listChains() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETCHAIN, netlink.Dump)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, a := range answers {
		if text(attribute(a, unix.NFTA_CHAIN_TABLE)) != TableName {
			continue
		}
		chain := text(attribute(a, unix.NFTA_CHAIN_NAME))
		r.names["chain"] = append(r.names["chain"], chain)
		r.add("chain", chain, attribute(a, unix.NFTA_CHAIN_HANDLE))
		for _, c := range r.chains {
			r.sound = r.sound && (c.name != chain || c.hookedAs(a))
		}
	}
	return nil
}

// hookNumbers are those of family inet, linux/netfilter.h.
var hookNumbers = map[knftables.BaseChainHook]uint64{
	knftables.PreroutingHook: 0, knftables.InputHook: 1, knftables.ForwardHook: 2, knftables.OutputHook: 3, knftables.PostroutingHook: 4,
}

// policyAccept is NF_ACCEPT.
const policyAccept = 1

// hookedAs reports whether a chain with these attributes is met by the same packets
// as c at the same place, and lets them go on.
func (c chain) hookedAs(a []byte) bool {
	hook := attribute(a, unix.NFTA_CHAIN_HOOK)
	if c.hook == "" {
		return hook == nil
	}
	priority, err := knftables.ParsePriority(knftables.InetFamily, string(c.priority))
	return err == nil && hook != nil &&
		number(attribute(hook, unix.NFTA_HOOK_HOOKNUM)) == hookNumbers[c.hook] &&
		uint32(number(attribute(hook, unix.NFTA_HOOK_PRIORITY))) == uint32(int32(priority)) &&
		number(attribute(a, unix.NFTA_CHAIN_POLICY)) == policyAccept &&
		text(attribute(a, unix.NFTA_CHAIN_TYPE)) == string(knftables.FilterType)
}

func (r *reading) listSets() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETSET, netlink.Dump, ofTable)
	if err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	for _, a := range answers {
		set := text(attribute(a, unix.NFTA_SET_NAME))
		r.add("set", set, attribute(a, nftaSetHandle))
		if number(attribute(a, unix.NFTA_SET_FLAGS))&unix.NFT_SET_ANONYMOUS == 0 {
			r.names["set"] = append(r.names["set"], set) // the others belong to rules
		}
	}
	return nil
}

func (r *reading) listObjects() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETOBJ, netlink.Dump, ofTable)
	if err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	for _, a := range answers {
		kind := "object"
		if number(attribute(a, unix.NFTA_OBJ_TYPE)) == objectCounter {
			kind = "counter"
		}
		object := text(attribute(a, unix.NFTA_OBJ_NAME))
		r.names[kind] = append(r.names[kind], object)
		r.add(kind, object, attribute(a, nftaObjHandle))
	}
	return nil
}

// listRules goes by what rules do, too: a rule that is put in another's place has
// that one's handle.
func (r *reading) listRules() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETRULE, netlink.Dump, ofTable)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, a := range answers {
		chain := text(attribute(a, unix.NFTA_RULE_CHAIN))
		r.base.rules[chain] = append(r.base.rules[chain], fmt.Sprintf("%d %s",
			number(attribute(a, unix.NFTA_RULE_HANDLE)), expressionsHash(attribute(a, unix.NFTA_RULE_EXPRESSIONS))))
	}
	return nil
}

// counting are the expressions whose data change with the packets that they meet.
var counting = []string{"counter", "quota", "last"}

// expressionsHash tells what a rule does.
func expressionsHash(expressions []byte) string {
	hash := sha256.New()
	for _, e := range nlattr.All(expressions) {
		name, data := text(attribute(e, unix.NFTA_EXPR_NAME)), attribute(e, unix.NFTA_EXPR_DATA)
		if slices.Contains(counting, name) {
			data = nil
		}
		fmt.Fprintf(hash, "%s %d ", name, len(data))
		hash.Write(data)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// readSet returns nil elements for a set that holds what we would not write,
// such as a range that is no prefix. Such a set is written anew.
func readSet(conn *netlink.Conn, spec setSpec) (elements, error) {
	answers, err := get(conn, unix.NFT_MSG_GETSETELEM, netlink.Dump, ofTable, name(unix.NFTA_SET_ELEM_LIST_SET, spec.name))
	if err != nil {
		return nil, err
	}
	var keys []setKey
	for _, a := range answers {
		for _, e := range nlattr.All(attribute(a, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if attribute(e, nftaSetElemKeyEnd) != nil {
				return nil, nil
			}
			keys = append(keys, setKey{
				bytes: attribute(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE),
				flags: number(attribute(e, unix.NFTA_SET_ELEM_FLAGS)),
			})
		}
	}
	if spec.ranges {
		return intervals(keys, spec.addrLen()), nil
	}
	found := make(elements, len(keys))
	for _, k := range keys {
		e, ok := spec.element(k)
		if !ok {
			return nil, nil
		}
		found[e] = struct{}{}
	}
	return found, nil
}

// setKey is an element as the kernel lists it: that of a set of ranges is where one
// begins or, with a flag, the first address behind it.
type setKey struct {
	bytes []byte
	flags uint64
}

// addrLen is the length of an address of this set.
func (s setSpec) addrLen() int {
	if s.ipv6 {
		return 16
	}
	return 4
}

// element reads an address, with a number where it has one, or a word.
func (s setSpec) element(k setKey) (element, bool) {
	if s.words != "" {
		return s.wordOf(k)
	}
	n := s.addrLen()
	if k.flags != 0 || len(k.bytes) < n {
		return element{}, false
	}
	a, _ := netip.AddrFromSlice(k.bytes[:n])
	e, with := element{prefix: netip.PrefixFrom(a, a.BitLen())}, k.bytes[n:]
	switch {
	case s.with == "":
		return e, len(with) == 0
	case len(with) != 4: // each part of a key is padded to that
		return element{}, false
	case s.with == "mark":
		e.with = binary.NativeEndian.Uint32(with)
	default:
		e.with = uint32(binary.BigEndian.Uint16(with))
	}
	return e, true
}

// intervals reads the prefixes of a set of ranges, nil if not all are prefixes.
func intervals(keys []setKey, addrLen int) elements {
	slices.SortFunc(keys, func(a, b setKey) int {
		// Where one range ends and the next begins, the end comes first.
		return cmp.Or(bytes.Compare(a.bytes, b.bytes), -cmp.Compare(a.flags, b.flags))
	})
	found := make(elements, len(keys)/2)
	for i := 0; i < len(keys); i++ {
		k := keys[i]
		if len(k.bytes) != addrLen || k.flags&^unix.NFT_SET_ELEM_INTERVAL_END != 0 {
			return nil
		}
		if k.flags != 0 {
			continue // the gap ahead of the first range
		}
		first, _ := netip.AddrFromSlice(k.bytes)
		var behind netip.Addr // the zero Addr where the range reaches the last address
		if i++; i < len(keys) {
			if keys[i].flags == 0 {
				return nil
			}
			behind, _ = netip.AddrFromSlice(keys[i].bytes)
		}
		p, ok := prefixOf(first, behind)
		if !ok {
			return nil
		}
		found[element{prefix: p}] = struct{}{}
	}
	return found
}

// prefixOf returns the prefix that begins with first and ends ahead of behind.
func prefixOf(first, behind netip.Addr) (netip.Prefix, bool) {
	for bits := range first.BitLen() + 1 {
		p := netip.PrefixFrom(first, bits)
		if p.Masked().Addr() == first && lastAddr(p).Next() == behind {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
