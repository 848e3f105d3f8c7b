package rule

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
)

// firstRegister is where everything is loaded that is not a further part of a concatenation.
var firstRegister = register(0)

// registerWords is how many words all registers have.
const registerWords = 16

// compiler compiles one rule.
type compiler struct {
	Options
	host      binary.ByteOrder
	selectors map[string]selector
	tokens    []token // those that are left
	exprs     []expr.Any
	sets      []AnonymousSet
	known     map[string]string // values of selectors that the rule has compared
}

// rule compiles matches and statements up to the end.
func (c *compiler) rule() error {
	if c.peek().text == "" {
		return errors.New("the rule is empty")
	}
	for c.peek().text != "" {
		first := c.peek()
		statement, ok := statements[first.text]
		var err error
		if ok {
			c.next()
			err = statement.compile(c, first)
		} else {
			err = c.match()
		}
		if err != nil {
			return err
		}
		if rest := c.peek(); statement.final && rest.text != "" {
			return rest.errorf("is never reached: %q ends the rule", first.text)
		}
	}
	return nil
}

func (c *compiler) peek() token { return c.tokens[0] }

// next takes the next token. The end stays.
func (c *compiler) next() token {
	t := c.tokens[0]
	if t.text != "" {
		c.tokens = c.tokens[1:]
	}
	return t
}

// take takes the next token if it is text.
func (c *compiler) take(text string) bool {
	if c.peek().text != text {
		return false
	}
	c.next()
	return true
}

// expect takes these tokens.
func (c *compiler) expect(texts ...string) error {
	for _, text := range texts {
		if t := c.next(); t.text != text {
			return t.errorf("want %q here", text)
		}
	}
	return nil
}

// number takes a number of at least 1 and at most max.
func (c *compiler) number(max uint64) (uint64, error) {
	t := c.next()
	return t.number(t.text, max)
}

// number parses text, which is a part of t.
func (t token) number(text string, max uint64) (uint64, error) {
	n, err := number(text, max)
	if err != nil {
		return 0, t.errorf("%w", err)
	}
	if n == 0 {
		return 0, t.errorf("%q is not above 0", text)
	}
	return n, nil
}

// name takes the name of an object.
func (c *compiler) name() (string, error) {
	t := c.next()
	if t.text == "" || !isLetter(t.text[0]) || strings.ContainsAny(t.text, "@:/.") {
		return "", t.errorf("is not a name")
	}
	return t.text, nil
}

func isLetter(b byte) bool { return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' }

func (c *compiler) emit(e ...expr.Any) { c.exprs = append(c.exprs, e...) }

// match compiles a selector, or a concatenation of selectors, with what it is compared with
// or what it is set to.
func (c *compiler) match() error {
	parts, key, err := c.concatenation()
	if err != nil {
		return err
	}
	if c.take("set") {
		return c.assign(parts)
	}
	if err := c.load(parts); err != nil {
		return err
	}
	switch {
	case c.peek().text == "&":
		return c.matchMasked(parts)
	case len(parts) > 1:
		return c.lookup(key, c.operator())
	}
	return c.compare(parts[0], key)
}

// concatenation takes selectors with "." between them.
func (c *compiler) concatenation() (parts []loaded, key Type, err error) {
	words := 0
	for i := 0; i == 0 || c.take("."); i++ {
		first := c.peek()
		s, name, err := c.selector()
		switch {
		case err != nil:
			return nil, Type{}, err
		case i == maxParts || words+s.key.registers() > registerWords:
			return nil, Type{}, first.errorf("the concatenation is too long")
		}
		parts = append(parts, loaded{s, name, first, register(words)})
		key.parts[i] = s.key
		words += s.key.registers()
	}
	return parts, key, nil
}

// loaded is a selector of a rule and the register that it is loaded into.
type loaded struct {
	selector
	name     string
	token    token
	register uint32
}

// selector takes the selector with the longest name.
func (c *compiler) selector() (selector, string, error) {
	var words []string
	for _, t := range c.tokens[:min(maxWords, len(c.tokens))] {
		words = append(words, t.text)
	}
	for n := len(words); n > 0; n-- {
		name := strings.Join(words[:n], " ")
		if s, ok := c.selectors[name]; ok {
			c.tokens = c.tokens[n:]
			return s, name, nil
		}
	}
	for name := range c.selectors {
		if strings.HasPrefix(name, words[0]+" ") {
			return selector{}, "", c.tokens[1].errorf("no selector of family %s begins with %q", c.Family, words[0]+" "+words[1])
		}
	}
	return selector{}, "", c.peek().errorf("no statement and no selector of family %s begins with it", c.Family)
}

// load loads selectors, after the conditions that they need.
func (c *compiler) load(parts []loaded) error {
	for _, p := range parts {
		for _, needs := range p.needs {
			if err := c.require(p, needs); err != nil {
				return err
			}
		}
	}
	for _, p := range parts {
		c.emit(p.load(p.register))
		if _, ok := c.known[p.replaces]; p.replaces != "" && !ok {
			c.known[p.replaces] = "" // no value, so nothing that needs one can follow
		}
	}
	return nil
}

// require compares what a selector needs, unless the rule has done so already.
func (c *compiler) require(p loaded, needs condition) error {
	s := c.selectors[needs.selector]
	value, err := s.key.value(needs.value, c.host)
	if err != nil {
		return p.token.errorf("%w", err)
	}
	switch known, ok := c.known[needs.selector]; {
	case !ok:
		c.emit(s.load(firstRegister), &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: value})
		c.known[needs.selector] = string(value)
	case known != string(value):
		return p.token.errorf("needs %q to be %s, which conflicts with what the rule compares before", needs.selector, needs.value)
	}
	return nil
}

// operator is how two values are compared.
type operator struct {
	op       expr.CmpOp
	implicit bool // there is none in the text
}

func (o operator) negated() bool { return o.op == expr.CmpOpNeq }

// operator takes an operator, if there is one.
func (c *compiler) operator() operator {
	switch {
	case c.take("!="):
		return operator{op: expr.CmpOpNeq}
	case c.take("=="):
		return operator{op: expr.CmpOpEq}
	}
	return operator{op: expr.CmpOpEq, implicit: true}
}

// matchMasked compiles the comparison of some bits of a mark, or of some flags of TCP, with a
// number.
func (c *compiler) matchMasked(parts []loaded) error {
	and := c.next()
	key := parts[0].key
	if len(parts) > 1 || key != mark && key != tcpFlag {
		return and.errorf("only marks and flags of TCP can be masked")
	}
	bits, err := c.value(key)
	if err != nil {
		return err
	}
	t := c.peek()
	o := c.operator()
	if o.implicit {
		return t.errorf("want == or != here")
	}
	value, err := c.value(key)
	if err != nil {
		return err
	}
	c.emit(bitwise(bits, make([]byte, key.size)), &expr.Cmp{Op: o.op, Register: firstRegister, Data: value})
	return nil
}

// bitwise computes (x & mask) ^ xor in the first register.
func bitwise(mask, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: firstRegister, DestRegister: firstRegister, Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

// value takes a value.
func (c *compiler) value(d *dataType) ([]byte, error) {
	t := c.next()
	value, err := d.value(t.text, c.host)
	if err != nil {
		return nil, t.errorf("%w", err)
	}
	return value, nil
}

// compare compiles the comparison of one selector with a set, a value, flags, a range or a
// prefix.
func (c *compiler) compare(p loaded, key Type) error {
	o := c.operator()
	t := c.peek()
	switch {
	case strings.HasPrefix(t.text, "@"):
		return c.lookup(key, o)
	case t.text == "{":
		return c.anonymous(p.key, key, o)
	case p.key.flags:
		return c.compareFlags(p.key, o)
	case p.key != ifname && strings.Contains(t.text, "-"):
		return c.compareRange(p.key, o)
	case strings.Contains(t.text, "/"):
		return c.comparePrefix(p.key, o)
	}
	value, err := c.value(p.key)
	if err != nil {
		return err
	}
	if !o.negated() {
		if known, ok := c.known[p.name]; ok && known != string(value) {
			return t.errorf("conflicts with what the rule compares before")
		}
		if c.adjoins() {
			return t.errorf("the field adjoins the one that is compared before, and nft would merge both")
		}
		c.known[p.name] = string(value)
	}
	c.emit(&expr.Cmp{Op: o.op, Register: firstRegister, Data: value})
	return nil
}

// adjoins reports whether the field that was loaded last is behind the one whose value the
// expressions before compare.
func (c *compiler) adjoins() bool {
	if len(c.exprs) < 3 {
		return false
	}
	last := c.exprs[len(c.exprs)-3:]
	before, isField := last[0].(*expr.Payload)
	value, isValue := last[1].(*expr.Cmp)
	field, ok := last[2].(*expr.Payload)
	return isField && isValue && ok && value.Op == expr.CmpOpEq && field.Base == before.Base && field.Offset == before.Offset+before.Len
}

// compareFlags compiles the comparison with flags. Without an operator one of them has to be
// set, else the comparison is with all bits.
func (c *compiler) compareFlags(d *dataType, o operator) error {
	bits, err := c.value(d)
	for err == nil && c.take(",") {
		var more []byte
		more, err = c.value(d)
		for i := range more {
			bits[i] |= more[i]
		}
	}
	if err != nil {
		return err
	}
	if !o.implicit {
		c.emit(&expr.Cmp{Op: o.op, Register: firstRegister, Data: bits})
		return nil
	}
	none := make([]byte, len(bits))
	c.emit(bitwise(bits, none), &expr.Cmp{Op: expr.CmpOpNeq, Register: firstRegister, Data: none})
	return nil
}

func (c *compiler) compareRange(d *dataType, o operator) error {
	t := c.next()
	first, last, err := d.interval(t.text, c.host)
	switch {
	case err != nil:
		return t.errorf("%w", err)
	case o.negated():
		return t.errorf("a range cannot be compared with !=")
	}
	c.emit(&expr.Cmp{Op: expr.CmpOpGte, Register: firstRegister, Data: first},
		&expr.Cmp{Op: expr.CmpOpLte, Register: firstRegister, Data: last})
	return nil
}

// comparePrefix refuses prefixes of whole bytes, for which nft loads only these.
func (c *compiler) comparePrefix(d *dataType, o operator) error {
	t := c.next()
	first, last, err := d.interval(t.text, c.host)
	if err != nil {
		return t.errorf("%w", err)
	}
	bits := make([]byte, d.size)
	for i := range bits {
		bits[i] = ^(first[i] ^ last[i])
	}
	if !slices.ContainsFunc(bits, func(b byte) bool { return b != 0 && b != 0xff }) {
		return t.errorf("a prefix of whole bytes is not supported outside sets")
	}
	c.emit(bitwise(bits, make([]byte, d.size)), &expr.Cmp{Op: o.op, Register: firstRegister, Data: first})
	return nil
}

// lookup compiles the lookup in a named set.
func (c *compiler) lookup(key Type, o operator) error {
	name, err := c.set(c.next(), key)
	if err != nil {
		return err
	}
	c.emit(&expr.Lookup{SourceRegister: firstRegister, SetName: name, Invert: o.negated()})
	return nil
}

// set returns the name of the set that t names, which has to be of a type.
func (c *compiler) set(t token, key Type) (string, error) {
	name, ok := strings.CutPrefix(t.text, "@")
	if !ok {
		return "", t.errorf("want the name of a set here")
	}
	switch typ, ok := c.Set(name); {
	case !ok:
		return "", t.errorf("there is no such set")
	case typ != key:
		return "", t.errorf("the set is of type %q, and what is looked up is of type %q", typ, key)
	}
	return name, nil
}

// anonymous compiles the lookup in a set that the rule lists.
func (c *compiler) anonymous(d *dataType, key Type, o operator) error {
	open := c.next()
	set := AnonymousSet{Type: key}
	var values []interval
	for {
		t := c.next()
		v, err := c.interval(d, t)
		if err != nil {
			return err
		}
		values = append(values, v)
		set.Interval = set.Interval || !bytes.Equal(v.first, v.last)
		if c.take("}") {
			break
		}
		if err := c.expect(","); err != nil {
			return err
		}
	}
	var err error
	if set.Elements, err = elements(values, set.Interval); err != nil {
		return open.errorf("%w", err)
	}
	c.sets = append(c.sets, set)
	c.emit(&expr.Lookup{SourceRegister: firstRegister, SetName: AnonymousName, SetID: uint32(len(c.sets)), Invert: o.negated()})
	return nil
}

// interval is what an element of a set that a rule lists contains.
type interval struct{ first, last []byte }

// interval encodes a value, a range or a prefix.
func (c *compiler) interval(d *dataType, t token) (v interval, err error) {
	if d.flags || d == ifname || d == nfProto {
		return v, t.errorf("values of type %s are not supported in a set that a rule lists", d.name)
	}
	if strings.ContainsAny(t.text, "-/") {
		v.first, v.last, err = d.interval(t.text, c.host)
	} else {
		v.first, err = d.value(t.text, c.host)
		v.last = v.first
	}
	if err != nil {
		return v, t.errorf("%w", err)
	}
	return v, nil
}

// elements returns the elements of a set. Those of a set of intervals are sorted, and begin
// with the end of what is not in the set, as nft has them. It refuses what nft would change:
// a single value, values that adjoin or overlap, and an interval without an end.
func elements(values []interval, intervals bool) ([]Element, error) {
	if len(values) == 1 {
		return nil, errors.New("the set has one value, which needs no braces")
	}
	slices.SortStableFunc(values, func(a, b interval) int { return bytes.Compare(a.first, b.first) })
	var all []Element
	if intervals && slices.ContainsFunc(values[0].first, func(b byte) bool { return b != 0 }) {
		all = append(all, Element{make([]byte, len(values[0].first)), true})
	}
	var end []byte
	for i, v := range values {
		if i > 0 && bytes.Compare(v.first, values[i-1].last) <= 0 || intervals && bytes.Equal(v.first, end) {
			return nil, errors.New("two values of the set adjoin or overlap")
		}
		all = append(all, Element{Key: v.first})
		if !intervals {
			continue
		}
		if end = next(v.last); end == nil {
			return nil, errors.New("an interval up to the last value is not supported in a set that a rule lists")
		}
		all = append(all, Element{end, true})
	}
	return all, nil
}
