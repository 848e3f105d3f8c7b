package domains

import (
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

const (
	// queryLifetime is how long a query stays pending. Resolver libraries retry
	// after five seconds (resolv.conf(5)) and seldom wait twice as long.
	queryLifetime = 10 * time.Second
	// maxQueries bounds the pending queries of one pod, at up to half a kilobyte
	// each.
	maxQueries = 512
)

// transaction is what an answer shares with its query. The resolver's address is not
// part of it: the answer to a query to a Service may come from the pod behind it.
type transaction struct {
	asker netip.AddrPort
	proto packet.Proto
	id    uint16
	kind  dnsmessage.Type
}

// query holds the other properties of a query.
type query struct {
	name  string
	until time.Time // later answers are ignored
}

// queries are the pending queries of one pod, oldest first.
type queries struct {
	open    recent[transaction, query]
	evicted func() // called for each query that is evicted before it expires
}

func newQueries(evicted func()) queries {
	return queries{newRecent[transaction, query](), evicted}
}

func (q *queries) add(t transaction, name string, now time.Time) {
	q.open.put(t, query{name, now.Add(queryLifetime)})
	for {
		oldest, first, _ := q.open.oldest()
		switch {
		case !now.Before(first.until): // expired
		case q.open.len() > maxQueries:
			q.evicted()
		default:
			return
		}
		q.open.remove(oldest)
	}
}

// find returns the name of the pending query if it equals text.
func (q *queries) find(t transaction, text []byte, now time.Time) (name string, ok bool) {
	asked, ok := q.open.get(t)
	if !ok || !now.Before(asked.until) || asked.name != string(text) {
		return "", false
	}
	return asked.name, true
}

// remove removes a query that was answered.
func (q *queries) remove(t transaction) { q.open.remove(t) }
