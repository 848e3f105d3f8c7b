package domains

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// maxAsked is how many names that a pod has asked for are remembered, to explain denials.
	maxAsked = 128
	// maxShown bounds a name in an explanation, in bytes.
	maxShown = 100
)

// history is what one pod has asked for lately, to explain denials.
type history struct {
	names recent[string, asking]
	since time.Time // what was asked since is in names
}

// asking is the latest query for a name.
type asking struct {
	at     time.Time
	answer result // learned, empty or negative; "" before the answer
}

func newHistory(now time.Time) history { return history{newRecent[string, asking](), now} }

func (h *history) asked(name string, now time.Time) {
	h.names.put(name, asking{at: now})
	if h.names.len() > maxAsked {
		oldest, a, _ := h.names.oldest()
		h.names.remove(oldest)
		h.since = a.at
	}
}

// answered records the result of an answer. That of the other address family does not replace
// learned.
func (h *history) answered(name string, r result) {
	if a, ok := h.names.get(name); ok && a.answer != learned {
		a.answer = r
		h.names.put(name, a)
	}
}

// latest returns the name of the latest query that is one of names.
func (h *history) latest(names *matcher) (name string, a asking, ok bool) {
	for text, asked := range h.names.all() {
		if names.has(text) && (!ok || asked.at.After(a.at)) {
			name, a, ok = text, asked, true
		}
	}
	return name, a, ok
}

// matcher finds names that match some of many domains.
type matcher struct{ names, below map[string]bool }

func newMatcher(domains []policy.Domain) *matcher {
	m := &matcher{make(map[string]bool), make(map[string]bool)}
	for _, d := range domains {
		if d.Below {
			m.below[d.Name] = true
		} else {
			m.names[d.Name] = true
		}
	}
	return m
}

// has reports whether a domain matches name, as policy.Domain.Matches does.
func (m *matcher) has(name string) bool {
	if m.names[name] {
		return true
	}
	for at := range len(name) {
		if name[at] == '.' && at > 0 && m.below[name[at+1:]] {
			return true
		}
	}
	return false
}

// refused is why a learned name does not allow a packet.
const refused = "a domain name is allowed, but names do not match this address (CN-36)"

// Why returns why no domain name allows a packet that s denies in egress, "" if no name of the
// policies would. It is for logs and records: too slow for each packet. at is when the packet was
// denied.
func (t *Table) Why(s *policy.Snapshot, q policy.Query, at time.Time) string {
	q.Learned = t
	if s.NamesRefused(q) {
		return refused
	}
	missed := s.MissedNames(q)
	p := (*t.pods.Load())[q.Packet.Src.Addr()]
	if len(missed) == 0 || p == nil {
		return ""
	}
	return p.why(q.Packet.Dst.Addr(), missed, at)
}

// why returns why no name that matches one of domains is known for addr.
func (p *pod) why(addr netip.Addr, domains []policy.Domain, at time.Time) string {
	names := newMatcher(domains)
	if name, how := p.known.endedFor(addr, names); how.evicted {
		return fmt.Sprintf("%s was forgotten %s ago, because this pod knows too many addresses", shown(name), ago(at, how.at))
	} else if name != "" {
		return fmt.Sprintf("%s expired %s ago", shown(name), ago(at, how.at))
	}
	p.mu.Lock()
	name, asked, ok := p.history.latest(names)
	since := p.history.since
	p.mu.Unlock()
	other, known := p.known.nameFor(names)
	switch {
	case ok && asked.answer == "":
		return fmt.Sprintf("%s was asked of the trusted resolver %s ago and has no answer yet", shown(name), ago(at, asked.at))
	case known:
		return fmt.Sprintf("the answers for %s have other addresses", shown(other))
	case ok && asked.answer == learned:
		return fmt.Sprintf("the answers for %s had other addresses", shown(name))
	case ok:
		return fmt.Sprintf("%s was asked of the trusted resolver %s ago, and the answer has no address", shown(name), ago(at, asked.at))
	}
	return fmt.Sprintf("%s never asked of the trusted resolver by this pod (since %s)", were(domains), since.UTC().Format(time.RFC3339))
}

// were returns the domains with their verb.
func were(domains []policy.Domain) string {
	first := shown(strings.TrimPrefix(domains[0].String(), "*."))
	if domains[0].Below {
		first = "*." + first
	}
	switch n := len(domains) - 1; n {
	case 0:
		return first + " was"
	case 1:
		return first + " and one other name were"
	default:
		return fmt.Sprintf("%s and %d other names were", first, n)
	}
}

// shown returns a name for logs. It may have any bytes: a pod chooses what it asks for.
func shown(name string) string {
	name = printable.DomainName(name)
	if len(name) > maxShown {
		return name[:maxShown] + "..."
	}
	return name
}

// ago returns the time between then and at.
func ago(at, then time.Time) string {
	switch d := max(0, at.Sub(then)); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	default:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
}
