package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/batch"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
)

// maxList is the length of a message above which no further element is added to it. The list of
// elements is one attribute, so it must stay below batch.MaxAttribute.
const maxList = batch.MaxAttribute - 4096

// protocols are the kernel's numbers of the supported families.
var protocols = map[knftables.Family]byte{knftables.InetFamily: unix.NFPROTO_INET, knftables.BridgeFamily: unix.NFPROTO_BRIDGE}

// encoder encodes the changes of a transaction as messages. It must not be used by two goroutines
// at the same time.
type encoder struct {
	family   knftables.Family
	protocol byte
	table    string
	xtables  bool
	sets     map[string]setType
}

// setType says how to encode the elements of a set.
type setType struct {
	keys     rule.Type
	interval bool
}

func newEncoder(family knftables.Family, table string, o Options) (encoder, error) {
	protocol, ok := protocols[family]
	if !ok {
		return encoder{}, errors.New("tables of this family are not supported")
	}
	e := encoder{family: family, protocol: protocol, table: table, xtables: o.XTables, sets: make(map[string]setType)}
	for _, set := range o.Sets {
		keys, err := rule.ParseType(set.Type)
		if err != nil {
			return encoder{}, fmt.Errorf("set %s: %w", set.Name, err)
		}
		interval := false
		for _, flag := range set.Flags {
			interval = interval || flag == knftables.IntervalFlag
		}
		e.sets[set.Name] = setType{keys, interval}
	}
	return e, nil
}

// encode adds the messages of tx to b.
func (e encoder) encode(b *batch.Batch, tx *Transaction) (origins, error) {
	p := encoding{encoder: e, batch: b}
	for i := 0; i < len(tx.operations); {
		n, err := p.add(tx.operations[i:])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", tx.operations[i], err)
		}
		i += n
	}
	return p.origins, nil
}

// encoding is a transaction that is being encoded.
type encoding struct {
	encoder
	batch   *batch.Batch
	origins origins
	setIDs  uint32 // the last ID given to a set in this batch
}

// add encodes the first of ops, and the following ones that fit into the same message. It returns
// how many it has encoded.
func (p *encoding) add(ops []operation) (n int, err error) {
	op := ops[0]
	switch o := op.object.(type) {
	case *knftables.Table:
		return 1, p.addTable(op)
	case *knftables.Chain:
		return 1, p.addChain(op, o)
	case *knftables.Set:
		return 1, p.addSet(op, o)
	case *knftables.Counter:
		return 1, p.addCounter(op, o)
	case *Rule:
		p.addRule(op, o)
		return 1, nil
	case *knftables.Element:
		return p.addElements(ops, o.Set)
	}
	return 0, errUnknown
}

// errUnknown refuses changes that none of the agent's tables needs.
var errUnknown = errors.New("such a change is not supported")

// message starts a message about an object of the table.
func (p *encoding) message(op operation, kind, flags uint16) {
	p.batch.Message(kind, flags, p.protocol)
	p.origins = append(p.origins, origin{p.batch.Messages() - 1, 0, op})
	const tableAttribute = 1 // NFTA_*_TABLE has this value for all kinds of objects
	p.batch.String(tableAttribute, p.table)
}

func (p *encoding) addTable(op operation) error {
	switch op.verb {
	case addVerb:
		p.message(op, unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	case deleteVerb:
		p.message(op, unix.NFT_MSG_DELTABLE, 0)
	case flushVerb:
		p.message(op, unix.NFT_MSG_DELRULE, 0)
	}
	return nil
}

func (p *encoding) addChain(op operation, c *knftables.Chain) error {
	switch op.verb {
	case addVerb:
		p.message(op, unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
		p.batch.String(unix.NFTA_CHAIN_NAME, c.Name)
		return p.addHook(c)
	case deleteVerb:
		p.message(op, unix.NFT_MSG_DELCHAIN, 0)
		p.batch.String(unix.NFTA_CHAIN_NAME, c.Name)
	case flushVerb:
		p.message(op, unix.NFT_MSG_DELRULE, 0)
		p.batch.String(unix.NFTA_RULE_CHAIN, c.Name)
	}
	return nil
}

// hooks are the hook numbers of family inet, linux/netfilter.h. Family bridge has the same
// numbers.
var hooks = map[knftables.BaseChainHook]uint32{
	knftables.PreroutingHook: 0, knftables.InputHook: 1, knftables.ForwardHook: 2, knftables.OutputHook: 3, knftables.PostroutingHook: 4,
}

// addHook adds the hook, priority and type of c if it is a base chain.
func (p *encoding) addHook(c *knftables.Chain) error {
	if c.Hook == nil {
		return nil
	}
	if c.Type == nil || c.Priority == nil {
		return errors.New("a base chain needs a type and a priority")
	}
	number, ok := hooks[*c.Hook]
	if !ok {
		return fmt.Errorf("there is no hook %s", *c.Hook)
	}
	priority, err := knftables.ParsePriority(p.family, string(*c.Priority))
	if err != nil {
		return err
	}
	hook := p.batch.Nest(unix.NFTA_CHAIN_HOOK)
	p.batch.Uint32(unix.NFTA_HOOK_HOOKNUM, number)
	p.batch.Uint32(unix.NFTA_HOOK_PRIORITY, uint32(int32(priority)))
	p.batch.End(hook)
	p.batch.String(unix.NFTA_CHAIN_TYPE, string(*c.Type))
	return nil
}

func (p *encoding) addCounter(op operation, c *knftables.Counter) error {
	switch op.verb {
	case addVerb:
		p.message(op, unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE)
	case deleteVerb:
		p.message(op, unix.NFT_MSG_DELOBJ, 0)
	default:
		return errUnknown
	}
	p.batch.String(unix.NFTA_OBJ_NAME, c.Name)
	const counter = 1 // NFT_OBJECT_COUNTER
	p.batch.Uint32(unix.NFTA_OBJ_TYPE, counter)
	if op.verb == addVerb {
		p.batch.End(p.batch.Nest(unix.NFTA_OBJ_DATA))
	}
	return nil
}

func (p *encoding) addRule(op operation, r *Rule) {
	encoded := r.Rule.Encode(rule.Options{XTables: p.xtables, FirstSet: p.setIDs + 1})
	for _, set := range encoded.Sets {
		p.addAnonymous(op, set)
	}
	p.message(op, unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
	p.batch.String(unix.NFTA_RULE_CHAIN, r.Chain)
	p.batch.Bytes(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, encoded.Exprs)
}

func (p *encoding) addSet(op operation, s *knftables.Set) error {
	switch op.verb {
	case deleteVerb:
		p.message(op, unix.NFT_MSG_DELSET, 0)
		p.batch.String(unix.NFTA_SET_NAME, s.Name)
		return nil
	case flushVerb:
		p.message(op, unix.NFT_MSG_DELSETELEM, 0)
		p.batch.String(unix.NFTA_SET_ELEM_LIST_SET, s.Name)
		return nil
	}
	set, ok := p.sets[s.Name]
	if !ok {
		return errUndeclared
	}
	flags, err := setFlags(s.Flags)
	if err != nil {
		return err
	}
	spec := newSet{name: s.Name, flags: flags, keys: set.keys}
	if s.Size != nil {
		spec.size = uint32(*s.Size)
	}
	if s.Timeout != nil {
		spec.timeout = *s.Timeout
	}
	p.addNewSet(op, spec)
	return nil
}

// errUndeclared is a bug of the caller: nothing about a set can be encoded without its type.
var errUndeclared = errors.New("the set is not one of Options.Sets")

func setFlags(flags []knftables.SetFlag) (all uint32, err error) {
	for _, flag := range flags {
		switch flag {
		case knftables.IntervalFlag:
			all |= unix.NFT_SET_INTERVAL
		case knftables.TimeoutFlag:
			all |= unix.NFT_SET_TIMEOUT
		case knftables.DynamicFlag:
			all |= unix.NFT_SET_EVAL
		default:
			return 0, fmt.Errorf("sets with the flag %s are not supported", flag)
		}
	}
	return all, nil
}

// newSet describes a set to create.
type newSet struct {
	name    string
	flags   uint32
	keys    rule.Type
	size    uint32 // 0 if unbounded
	timeout time.Duration
	merge   []byte // user data of anonymous sets
}

func (p *encoding) addNewSet(op operation, s newSet) {
	p.setIDs++
	b := p.batch
	p.message(op, unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	b.String(unix.NFTA_SET_NAME, s.name)
	b.Uint32(unix.NFTA_SET_FLAGS, s.flags)
	b.Uint32(unix.NFTA_SET_KEY_TYPE, s.keys.ID())
	b.Uint32(unix.NFTA_SET_KEY_LEN, s.keys.Len())
	b.Uint32(unix.NFTA_SET_ID, p.setIDs)
	if s.size > 0 {
		desc := b.Nest(unix.NFTA_SET_DESC)
		b.Uint32(unix.NFTA_SET_DESC_SIZE, s.size)
		b.End(desc)
	}
	if s.timeout > 0 {
		b.Uint64(unix.NFTA_SET_TIMEOUT, uint64(s.timeout.Milliseconds()))
	}
	// Without the byte order, nft prints interface names as empty strings.
	b.Bytes(unix.NFTA_SET_USERDATA, append(udata(udataKeyByteOrder, s.keys.ByteOrder()), s.merge...))
}

// User data of sets, for nft programs that list them: the types of libnftnl's udata.h. Each is
// followed by its length and a number in host byte order. The type of the keys (typeof) is left
// out, because nft programs crash on that of other versions.
const (
	udataKeyByteOrder  = 0
	udataMergeElements = 2
)

func udata(kind byte, value uint32) []byte {
	return binary.NativeEndian.AppendUint32([]byte{kind, 4}, value)
}

// addAnonymous adds an anonymous set with its elements.
func (p *encoding) addAnonymous(op operation, s rule.AnonymousSet) {
	spec := newSet{name: rule.AnonymousName, flags: unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT, keys: s.Type, size: uint32(len(s.Elements))}
	if s.Interval {
		spec.flags |= unix.NFT_SET_INTERVAL
		spec.merge = udata(udataMergeElements, 1)
	}
	p.addNewSet(op, spec)
	p.message(op, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	p.batch.String(unix.NFTA_SET_ELEM_LIST_SET, spec.name)
	p.batch.Uint32(unix.NFTA_SET_ELEM_LIST_SET_ID, p.setIDs)
	list := p.batch.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for _, e := range s.Elements {
		p.addKey(e.Key, e.IntervalEnd)
	}
	p.batch.End(list)
}

// addKey adds an element to a list. In an interval set, key is the first key of an interval or
// the first one after it.
func (p *encoding) addKey(key []byte, intervalEnd bool) {
	b := p.batch
	element := b.Nest(unix.NFTA_LIST_ELEM)
	k := b.Nest(unix.NFTA_SET_ELEM_KEY)
	b.Bytes(unix.NFTA_DATA_VALUE, key)
	b.End(k)
	if intervalEnd {
		b.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	b.End(element)
}

// addElements adds the first elements of ops, as many as are of the same set and fit into one
// message.
func (p *encoding) addElements(ops []operation, set string) (n int, err error) {
	kind := uint16(unix.NFT_MSG_NEWSETELEM)
	switch ops[0].verb {
	case deleteVerb:
		kind = unix.NFT_MSG_DELSETELEM
	case flushVerb:
		return 0, errUnknown
	}
	typ, ok := p.sets[set]
	if !ok {
		return 0, errUndeclared
	}
	flags := uint16(0)
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	p.message(ops[0], kind, flags)
	p.batch.String(unix.NFTA_SET_ELEM_LIST_SET, set)
	list := p.batch.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for _, op := range ops {
		e, ok := op.object.(*knftables.Element)
		if !ok || e.Set != set || op.verb != ops[0].verb || p.batch.Offset() > maxList {
			break
		}
		p.origins = append(p.origins, origin{p.batch.Messages() - 1, p.batch.Offset(), op})
		if err := p.addElement(typ, e.Key); err != nil {
			return 0, fmt.Errorf("element %v: %w", e.Key, err)
		}
		n++
	}
	p.batch.End(list)
	return n, nil
}

func (p *encoding) addElement(typ setType, key []string) error {
	if !typ.interval {
		encoded, err := typ.keys.Key(key)
		if err == nil {
			p.addKey(encoded, false)
		}
		return err
	}
	if len(key) != 1 {
		return errors.New("an interval has one part")
	}
	first, end, err := typ.keys.Interval(key[0])
	if err != nil {
		return err
	}
	p.addKey(first, false)
	if end != nil {
		p.addKey(end, true)
	}
	return nil
}
