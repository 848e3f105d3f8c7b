package domains

import (
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

const (
	// queryLifetime is how long an answer is waited for. Resolver libraries ask
	// again after five seconds (resolv.conf(5)) and seldom wait twice as long.
	queryLifetime = 10 * time.Second
	// maxQueries bounds the queries of one pod that wait for their answers, at
	// up to half a kilobyte each.
	maxQueries = 512
)

// transaction is what an answer shares with its query. The resolver is not in
// it: what the pod calls a Service may answer as the pod behind it.
type transaction struct {
	asker netip.AddrPort
	proto packet.Proto
	id    uint16
	kind  dnsmessage.Type
}

// query is the rest of a query.
type query struct {
	name  string
	until time.Time // no answer counts from then on
}

// queries are those of one pod that are not answered yet, oldest first.
type queries struct {
	open    recent[transaction, query]
	evicted func() // is told of each query that had to go before its time
}

func newQueries(evicted func()) queries {
	return queries{newRecent[transaction, query](), evicted}
}

func (q *queries) add(t transaction, name string, now time.Time) {
	q.open.put(t, query{name, now.Add(queryLifetime)})
	for {
		oldest, first, _ := q.open.oldest()
		switch {
		case !now.Before(first.until): // nobody answers it any more
		case q.open.len() > maxQueries:
			q.evicted()
		default:
			return
		}
		q.open.remove(oldest)
	}
}

// find returns the name that was asked for, if that was text.
func (q *queries) find(t transaction, text []byte, now time.Time) (name string, ok bool) {
	asked, ok := q.open.get(t)
	if !ok || !now.Before(asked.until) || asked.name != string(text) {
		return "", false
	}
	return asked.name, true
}

// remove takes a query away that was answered.
func (q *queries) remove(t transaction) { q.open.remove(t) }
