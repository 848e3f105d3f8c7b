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

	"sigs.k8s.io/kube-network-policies/pkg/kernel/handover"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// readAttempts bounds how often the table is read again because other processes commit.
const readAttempts = 10

func (k netlinkKernel) read(ctx context.Context, want tableLayout) (o *observedState, err error) {
	generation, err := k.readConsistently(ctx, func(conn *netlink.Conn) (err error) {
		o, err = readOnce(conn, want)
		return err
	})
	if err != nil {
		return nil, err
	}
	o.generation = generation
	return o, nil
}

func (k netlinkKernel) exists(ctx context.Context) (bool, error) {
	conn, err := k.conn(ctx)
	if err != nil {
		return false, err
	}
	_, err = get(conn, unix.NFT_MSG_GETTABLE, 0, tableArgument)
	k.release(conn, err)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

func (k netlinkKernel) owners(ctx context.Context) (owners []element, err error) {
	_, err = k.readConsistently(ctx, func(conn *netlink.Conn) error {
		owners = nil
		table := tableArgument
		if _, err := get(conn, unix.NFT_MSG_GETTABLE, 0, table); errors.Is(err, unix.ENOENT) {
			table = formerArgument
		}
		for _, spec := range ownersSpecs() {
			keys, _, err := setKeys(conn, table, spec.name)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			for _, key := range keys {
				if e, ok := spec.element(key); ok {
					owners = append(owners, e)
				}
			}
		}
		return nil
	})
	return owners, err
}

// readConsistently calls read, and repeats it if there were commits meanwhile, because a dump of several
// messages may then miss entries. It accepts the last attempt in any case: the commits that made it
// outdated are notified. It returns the generation before the accepted attempt.
func (k netlinkKernel) readConsistently(ctx context.Context, read func(*netlink.Conn) error) (now uint32, err error) {
	conn, err := k.conn(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { k.release(conn, err) }()
	before, err := generation(conn)
	if err != nil {
		return 0, err
	}
	for attempt := 1; ; attempt++ {
		err := read(conn)
		after, errAfter := generation(conn)
		switch {
		case errAfter != nil:
			return 0, errAfter
		case before != after && attempt < readAttempts:
			before = after
			continue
		}
		return before, err
	}
}

func readOnce(conn *netlink.Conn, want tableLayout) (*observedState, error) {
	r := reading{conn: conn, chains: want.chains, sound: true, names: make(map[string][]string),
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
	o := &observedState{layout: incompatible, base: r.base}
	o.named = slices.Contains(r.names["set"], holderSet)
	if o.named {
		var err error
		if o.holder, err = readHolder(conn, tableArgument); err != nil {
			return nil, err
		}
	}
	if !r.sound || !want.isOurs(r.names) {
		if r.sound && changeable(r.names) {
			o.names = r.names
		}
		return o, nil
	}
	o.layout, o.sets = ours, make(contents, len(want.specs))
	for _, spec := range want.specs {
		var err error
		if o.sets[spec.name], err = readSet(conn, spec); err != nil {
			return nil, fmt.Errorf("set %s: %w", spec.name, err)
		}
	}
	return o, nil
}

// reading collects the objects of a table.
type reading struct {
	conn   *netlink.Conn
	chains []chain // the expected ones
	names  map[string][]string
	base   base
	sound  bool // if false, only a new table repairs this one
}

func (r *reading) table() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETTABLE, 0, tableArgument)
	if err != nil {
		return err
	}
	for _, a := range answers {
		if nlattr.Number(nlattr.Get(a, unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0 {
			r.sound = false // no packet enters its chains
		}
		r.add("table", TableName, nlattr.Get(a, nftaTableHandle))
	}
	return nil
}

// add records an object. The kernel does not reuse the handles of objects while their table exists,
// and never reuses the handles of tables in a network namespace.
func (r *reading) add(kind, name string, handle []byte) {
	r.base.objects[kind+" "+name] = fmt.Sprint(nlattr.Number(handle))
}

func (r *reading) listChains() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETCHAIN, netlink.Dump)
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, a := range answers {
		if nlattr.Text(nlattr.Get(a, unix.NFTA_CHAIN_TABLE)) != TableName {
			continue
		}
		chain := nlattr.Text(nlattr.Get(a, unix.NFTA_CHAIN_NAME))
		r.names["chain"] = append(r.names["chain"], chain)
		r.add("chain", chain, nlattr.Get(a, unix.NFTA_CHAIN_HANDLE))
		for _, c := range r.chains {
			r.sound = r.sound && (c.name != chain || c.hookedAs(a))
		}
	}
	return nil
}

// hookNumbers are the hook numbers of family inet, linux/netfilter.h.
var hookNumbers = map[knftables.BaseChainHook]uint64{
	knftables.PreroutingHook: 0, knftables.InputHook: 1, knftables.ForwardHook: 2, knftables.OutputHook: 3, knftables.PostroutingHook: 4,
}

// policyAccept is NF_ACCEPT.
const policyAccept = 1

// hookedAs reports whether a chain with these attributes has the hook, priority and
// type of c and the policy accept.
func (c chain) hookedAs(a []byte) bool {
	hook := nlattr.Get(a, unix.NFTA_CHAIN_HOOK)
	if c.hook == "" {
		return hook == nil
	}
	priority, err := knftables.ParsePriority(knftables.InetFamily, string(c.priority))
	return err == nil && hook != nil &&
		nlattr.Number(nlattr.Get(hook, unix.NFTA_HOOK_HOOKNUM)) == hookNumbers[c.hook] &&
		uint32(nlattr.Number(nlattr.Get(hook, unix.NFTA_HOOK_PRIORITY))) == uint32(int32(priority)) &&
		nlattr.Number(nlattr.Get(a, unix.NFTA_CHAIN_POLICY)) == policyAccept &&
		nlattr.Text(nlattr.Get(a, unix.NFTA_CHAIN_TYPE)) == string(knftables.FilterType)
}

func (r *reading) listSets() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETSET, netlink.Dump, tableArgument)
	if err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	for _, a := range answers {
		set := nlattr.Text(nlattr.Get(a, unix.NFTA_SET_NAME))
		r.add("set", set, nlattr.Get(a, nftaSetHandle))
		if nlattr.Number(nlattr.Get(a, unix.NFTA_SET_FLAGS))&unix.NFT_SET_ANONYMOUS == 0 {
			r.names["set"] = append(r.names["set"], set) // anonymous sets belong to rules
		}
	}
	return nil
}

func (r *reading) listObjects() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETOBJ, netlink.Dump, tableArgument)
	if err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	for _, a := range answers {
		kind := "object"
		if nlattr.Number(nlattr.Get(a, unix.NFTA_OBJ_TYPE)) == objectCounter {
			kind = "counter"
		}
		object := nlattr.Text(nlattr.Get(a, unix.NFTA_OBJ_NAME))
		r.names[kind] = append(r.names[kind], object)
		r.add(kind, object, nlattr.Get(a, nftaObjHandle))
	}
	return nil
}

// listRules records handles and contents of rules. The handle alone is not enough, because a rule
// that replaces another one keeps its handle.
func (r *reading) listRules() error {
	answers, err := get(r.conn, unix.NFT_MSG_GETRULE, netlink.Dump, tableArgument)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, a := range answers {
		chain := nlattr.Text(nlattr.Get(a, unix.NFTA_RULE_CHAIN))
		r.base.rules[chain] = append(r.base.rules[chain], fmt.Sprintf("%d %s",
			nlattr.Number(nlattr.Get(a, unix.NFTA_RULE_HANDLE)), expressionsHash(nlattr.Get(a, unix.NFTA_RULE_EXPRESSIONS))))
	}
	return nil
}

// countingExpressions are the expressions whose data changes with each packet.
var countingExpressions = []string{"counter", "quota", "last"}

// expressionsHash returns a hash of the effect of a rule.
func expressionsHash(expressions []byte) string {
	hash := sha256.New()
	for _, e := range nlattr.All(expressions) {
		name, data := nlattr.Text(nlattr.Get(e, unix.NFTA_EXPR_NAME)), nlattr.Get(e, unix.NFTA_EXPR_DATA)
		if slices.Contains(countingExpressions, name) {
			data = nil
		}
		fmt.Fprintf(hash, "%s %d ", name, len(data))
		hash.Write(data)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// setKeys lists the elements of a set. ok is false if an element contains both ends of a range, which
// we do not write.
func setKeys(conn *netlink.Conn, table argument, set string) (keys []setKey, ok bool, err error) {
	answers, err := get(conn, unix.NFT_MSG_GETSETELEM, netlink.Dump, table, stringArgument(unix.NFTA_SET_ELEM_LIST_SET, set))
	if err != nil {
		return nil, false, err
	}
	for _, a := range answers {
		for _, e := range nlattr.All(nlattr.Get(a, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if nlattr.Get(e, nftaSetElemKeyEnd) != nil {
				return nil, false, nil
			}
			keys = append(keys, setKey{
				bytes: nlattr.Get(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE),
				flags: nlattr.Number(nlattr.Get(e, unix.NFTA_SET_ELEM_FLAGS)),
			})
		}
	}
	return keys, true, nil
}

// readHolder returns the zero Holder if the set does not have exactly one.
func readHolder(conn *netlink.Conn, table argument) (handover.Holder, error) {
	keys, ok, err := setKeys(conn, table, holderSet)
	if err != nil {
		return handover.Holder{}, fmt.Errorf("set %s: %w", holderSet, err)
	}
	if !ok || len(keys) != 1 {
		return handover.Holder{}, nil
	}
	return decodeHolder(keys[0].bytes), nil
}

// readSet returns nil elements if the set has elements that we do not write, such as a range that is
// not a prefix. Such a set is rewritten.
func readSet(conn *netlink.Conn, spec setSpec) (elements, error) {
	keys, ok, err := setKeys(conn, tableArgument, spec.name)
	if err != nil || !ok {
		return nil, err
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

// setKey is an element as the kernel lists it. In an interval set it is the first address of a range,
// or with NFT_SET_ELEM_INTERVAL_END the first address after a range.
type setKey struct {
	bytes []byte
	flags uint64
}

// addrLen is the length of an address in this set.
func (s setSpec) addrLen() int {
	if s.ipv6 {
		return 16
	}
	return 4
}

// element decodes an address, an address with a number, or a value of a set of values.
func (s setSpec) element(k setKey) (element, bool) {
	if s.keyType != "" {
		return s.decodeValue(k)
	}
	n := s.addrLen()
	if k.flags != 0 || len(k.bytes) < n {
		return element{}, false
	}
	a, _ := netip.AddrFromSlice(k.bytes[:n])
	e, rest := element{prefix: netip.PrefixFrom(a, a.BitLen())}, k.bytes[n:]
	switch {
	case s.number == "":
		return e, len(rest) == 0
	case len(rest) != 4: // each part of a key is padded to 4 bytes
		return element{}, false
	case s.number == "mark":
		e.number = binary.NativeEndian.Uint32(rest)
	default:
		e.number = uint32(binary.BigEndian.Uint16(rest))
	}
	return e, e.number != 0 // key writes no number for 0, so the element could not be deleted
}

// intervals decodes the prefixes of an interval set. It returns nil if not all ranges are prefixes.
func intervals(keys []setKey, addrLen int) elements {
	slices.SortFunc(keys, func(a, b setKey) int {
		// If a range begins where the previous one ends, the end comes first.
		return cmp.Or(bytes.Compare(a.bytes, b.bytes), -cmp.Compare(a.flags, b.flags))
	})
	found := make(elements, len(keys)/2)
	for i := 0; i < len(keys); i++ {
		k := keys[i]
		if len(k.bytes) != addrLen || k.flags&^unix.NFT_SET_ELEM_INTERVAL_END != 0 {
			return nil
		}
		if k.flags != 0 {
			continue // the gap before the first range
		}
		first, _ := netip.AddrFromSlice(k.bytes)
		var end netip.Addr // the zero Addr if the range includes the last address
		i++
		if i < len(keys) {
			if keys[i].flags == 0 {
				return nil
			}
			end, _ = netip.AddrFromSlice(keys[i].bytes)
		}
		p, ok := prefixOf(first, end)
		if !ok {
			return nil
		}
		found[element{prefix: p}] = struct{}{}
	}
	return found
}

// prefixOf returns the prefix that begins with first and ends before end.
func prefixOf(first, end netip.Addr) (netip.Prefix, bool) {
	for bits := range first.BitLen() + 1 {
		p := netip.PrefixFrom(first, bits)
		if p.Masked().Addr() == first && lastAddr(p).Next() == end {
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
