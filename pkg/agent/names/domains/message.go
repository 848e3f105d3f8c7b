package domains

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// maxChain is the largest number of CNAMEs between a question and its addresses.
// Recursive resolvers themselves follow about a dozen.
const maxChain = 16

var (
	errQuestion = errors.New("not exactly one question")
	errChain    = fmt.Errorf("more than %d CNAMEs", maxChain)
)

// message is a DNS message with one question, parsed up to its answers.
type message struct {
	dnsmessage.Header
	question dnsmessage.Question // its name in lower case
	answers  dnsmessage.Parser   // at the first answer
}

// parse parses a message up to its answers.
func parse(b []byte) (message, error) {
	var m message
	var err error
	if m.Header, err = m.answers.Start(b); err != nil {
		return message{}, err
	}
	if m.question, err = m.answers.Question(); err != nil {
		return message{}, err
	}
	fold(&m.question.Name)
	if _, err := m.answers.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return message{}, errQuestion
	}
	return m, nil
}

// asksForAddresses reports whether addresses can be learned from an answer.
func (m *message) asksForAddresses() bool {
	q := &m.question
	return m.OpCode == 0 && q.Class == dnsmessage.ClassINET &&
		(q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA) && len(text(&q.Name)) > 0
}

// transaction returns the transaction of a message from or to asker.
func (m *message) transaction(asker netip.AddrPort, proto packet.Proto) transaction {
	return transaction{asker, proto, m.ID, m.question.Type}
}

// record is one of the answers.
type record struct {
	dnsmessage.ResourceHeader                   // its name in lower case
	data                      dnsmessage.Parser // at the record's data
}

// records yields the answers in their order. It stops after an error.
func (m *message) records() iter.Seq2[*record, error] {
	return func(yield func(*record, error) bool) {
		var r record
		for p := m.answers; ; {
			var err error
			r.ResourceHeader, err = p.AnswerHeader()
			if errors.Is(err, dnsmessage.ErrSectionDone) {
				return
			}
			if err == nil {
				fold(&r.Name)
				r.data = p
				err = p.SkipAnswer()
			}
			if !yield(&r, err) || err != nil {
				return
			}
		}
	}
}

// is reports whether the record has this type and owner.
func (r *record) is(kind dnsmessage.Type, owner *dnsmessage.Name) bool {
	return r.Type == kind && r.Class == dnsmessage.ClassINET && bytes.Equal(text(&r.Name), text(owner))
}

// follow follows CNAMEs from the question's name to the name that has the addresses,
// and returns that name with the smallest TTL of the chain. The records may be in
// any order; all of them are read.
func (m *message) follow() (owner dnsmessage.Name, ttl uint32, err error) {
	owner, ttl = m.question.Name, maxTTLSeconds
	links := 0
	for moved := true; moved; {
		moved = false
		for r, err := range m.records() {
			if err != nil {
				return owner, 0, err
			}
			if !r.is(dnsmessage.TypeCNAME, &owner) {
				continue
			}
			cname, err := r.data.CNAMEResource()
			if err != nil {
				return owner, 0, err
			}
			links++
			if links > maxChain {
				return owner, 0, errChain
			}
			owner, ttl, moved = cname.CNAME, min(ttl, seconds(r.TTL)), true
			fold(&owner)
		}
	}
	return owner, ttl, nil
}

// addresses yields the addresses of owner of the question's type, with their TTLs.
func (m *message) addresses(owner *dnsmessage.Name) iter.Seq2[netip.Addr, uint32] {
	return func(yield func(netip.Addr, uint32) bool) {
		for r, err := range m.records() {
			if err != nil {
				return
			}
			if !r.is(m.question.Type, owner) {
				continue
			}
			if addr := r.address(); addr.IsValid() && !yield(addr, seconds(r.TTL)) {
				return
			}
		}
	}
}

// address returns the address of a record of type A or AAAA, the zero Addr if
// its length is wrong. A mapped IPv6 address is the IPv4 address that clients
// connect to.
func (r *record) address() netip.Addr {
	switch {
	case r.Type == dnsmessage.TypeA && r.Length == 4:
		if a, err := r.data.AResource(); err == nil {
			return netip.AddrFrom4(a.A)
		}
	case r.Type == dnsmessage.TypeAAAA && r.Length == 16:
		if a, err := r.data.AAAAResource(); err == nil {
			return netip.AddrFrom16(a.AAAA).Unmap()
		}
	}
	return netip.Addr{}
}

// maxTTLSeconds is the greatest TTL there is, and seconds reads one: a greater
// number counts as 0 (RFC 2181, section 8).
const maxTTLSeconds = 1<<31 - 1

func seconds(ttl uint32) uint32 {
	if ttl > maxTTLSeconds {
		return 0
	}
	return ttl
}

// fold converts a name to lower case: DNS names are case insensitive, and resolvers
// change the case on purpose.
func fold(n *dnsmessage.Name) {
	for i, c := range n.Data[:n.Length] {
		if 'A' <= c && c <= 'Z' {
			n.Data[i] = c + 'a' - 'A'
		}
	}
}

// text returns the name without its trailing dot.
func text(n *dnsmessage.Name) []byte {
	return bytes.TrimSuffix(n.Data[:n.Length], []byte{'.'})
}
