package rule

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
)

// firstRegister is the register for all values except the further parts of a concatenation.
var firstRegister = register(0)

// registerWords is the size of all registers together, in words of 4 bytes.
const registerWords = 16

// compiler compiles one rule.
type compiler struct {
	Options
	host      binary.ByteOrder
	selectors map[string]selector
	tokens    []token // the remaining ones
	exprs     []expr.Any
	sets      []AnonymousSet
	compared  map[string]string // the values that the rule has already compared selectors with
}

// rule compiles matches and statements up to the end of the rule.
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

// next consumes and returns the next token. It does not consume the end token.
func (c *compiler) next() token {
	t := c.tokens[0]
	if t.text != "" {
		c.tokens = c.tokens[1:]
	}
	return t
}

// accept consumes the next token if it is text, and reports whether it did.
func (c *compiler) accept(text string) bool {
	if c.peek().text != text {
		return false
	}
	c.next()
	return true
}

// expect consumes exactly these tokens.
func (c *compiler) expect(texts ...string) error {
	for _, text := range texts {
		if t := c.next(); t.text != text {
			return t.errorf("want %q here", text)
		}
	}
	return nil
}

// number consumes a number from 1 to max.
func (c *compiler) number(max uint64) (uint64, error) {
	t := c.next()
	return t.number(t.text, max)
}

// number parses text, a part of t, as a number from 1 to max.
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

// name consumes the name of an object.
func (c *compiler) name() (string, error) {
	t := c.next()
	if t.text == "" || !isLetter(t.text[0]) || strings.ContainsAny(t.text, "@:/.") {
		return "", t.errorf("is not a name")
	}
	return t.text, nil
}

func isLetter(b byte) bool { return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' }

func (c *compiler) emit(e ...expr.Any) { c.exprs = append(c.exprs, e...) }

// match compiles the comparison of a selector or a concatenation, or an assignment, which begins
// in the same way.
func (c *compiler) match() error {
	parts, key, err := c.concatenation()
	if err != nil {
		return err
	}
	if c.accept("set") {
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

// concatenation consumes selectors with "." between them.
func (c *compiler) concatenation() (parts []loaded, key Type, err error) {
	words := 0
	for i := 0; i == 0 || c.accept("."); i++ {
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

// loaded is a selector of a rule, and the register for its value.
type loaded struct {
	selector
	name     string
	token    token
	register uint32
}

// selector consumes the longest selector that matches.
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

// load loads selectors, after comparing the conditions that they need.
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
		if _, ok := c.compared[p.replaces]; p.replaces != "" && !ok {
			c.compared[p.replaces] = "" // not a value, so no selector that needs one can follow
		}
	}
	return nil
}

// require compares a condition that p needs, unless the rule has already done so.
func (c *compiler) require(p loaded, needs condition) error {
	s := c.selectors[needs.selector]
	value, err := s.key.value(needs.value, c.host)
	if err != nil {
		return p.token.errorf("%w", err)
	}
	switch known, ok := c.compared[needs.selector]; {
	case !ok:
		c.emit(s.load(firstRegister), &expr.Cmp{Op: expr.CmpOpEq, Register: firstRegister, Data: value})
		c.compared[needs.selector] = string(value)
	case known != string(value):
		return p.token.errorf("needs %q to be %s, which conflicts with an earlier comparison in the rule", needs.selector, needs.value)
	}
	return nil
}

// operator says how two values are compared.
type operator struct {
	op       expr.CmpOp
	implicit bool // the text has no operator
}

func (o operator) negated() bool { return o.op == expr.CmpOpNeq }

// operator consumes an operator, if there is one.
func (c *compiler) operator() operator {
	switch {
	case c.accept("!="):
		return operator{op: expr.CmpOpNeq}
	case c.accept("=="):
		return operator{op: expr.CmpOpEq}
	}
	return operator{op: expr.CmpOpEq, implicit: true}
}

// matchMasked compiles the comparison of some bits of a mark, of TCP flags or of a status with a value.
func (c *compiler) matchMasked(parts []loaded) error {
	ampersand := c.next()
	key := parts[0].key
	if len(parts) > 1 || key != mark && key != tcpFlag && key != ctStatus {
		return ampersand.errorf("only marks, flags of TCP and the status of connections can be masked")
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

// value consumes a value of type d.
func (c *compiler) value(d *dataType) ([]byte, error) {
	t := c.next()
	value, err := d.value(t.text, c.host)
	if err != nil {
		return nil, t.errorf("%w", err)
	}
	return value, nil
}

// compare compiles the comparison of one selector with a set, a value, flags, a range or a prefix.
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
		if known, ok := c.compared[p.name]; ok && known != string(value) {
			return t.errorf("conflicts with an earlier comparison in the rule")
		}
		if c.adjoins() {
			return t.errorf("the field adjoins the one compared before it, and nft would merge the comparisons")
		}
		c.compared[p.name] = string(value)
	}
	c.emit(&expr.Cmp{Op: o.op, Register: firstRegister, Data: value})
	return nil
}

// adjoins reports whether the field loaded last directly follows the field that the rule compared
// before it.
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

// compareFlags compiles the comparison with flags. Without an operator the rule matches if one of
// them is set. With an operator it compares all bits.
func (c *compiler) compareFlags(d *dataType, o operator) error {
	bits, err := c.value(d)
	for err == nil && c.accept(",") {
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

// comparePrefix refuses prefixes of whole bytes, because nft compiles them in another way: it loads
// only those bytes.
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

// set returns the name of the set in t, which must have keys of type key.
func (c *compiler) set(t token, key Type) (string, error) {
	name, ok := strings.CutPrefix(t.text, "@")
	if !ok {
		return "", t.errorf("want the name of a set here")
	}
	switch typ, ok := c.Set(name); {
	case !ok:
		return "", t.errorf("there is no such set")
	case typ != key:
		return "", t.errorf("the set has keys of type %q, but the rule looks up type %q", typ, key)
	}
	return name, nil
}

// anonymous compiles the lookup in an anonymous set.
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
		if c.accept("}") {
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

// interval is an element of an anonymous set.
type interval struct{ first, last []byte }

// interval encodes a value, a range or a prefix.
func (c *compiler) interval(d *dataType, t token) (v interval, err error) {
	if d.flags || d == ifname || d == nfProto {
		return v, t.errorf("values of type %s are not supported in an anonymous set", d.name)
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

// elements returns the elements of an anonymous set as nft sends them: sorted, and in an interval
// set preceded by an end at 0 unless the first interval begins there. It refuses values that nft
// would rewrite: a single value, values that adjoin or overlap, and an interval without an end.
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
		if end = successor(v.last); end == nil {
			return nil, errors.New("an interval up to the last value is not supported in an anonymous set")
		}
		all = append(all, Element{end, true})
	}
	return all, nil
}
