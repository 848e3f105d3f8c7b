package flows

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

const (
	// maxDenials is how many denials are recorded. A further one replaces the oldest.
	maxDenials = 512
	// denialsPerSource is how many denials of one source are recorded in a denialInterval.
	denialInterval   = 10 * time.Second
	denialsPerSource = 5
	// denialSources is how many sources are distinguished in an interval. All further ones
	// count as one.
	denialSources = 1024
)

// denial is one denied packet.
type denial struct {
	key
	from, to podName
	srcPort  uint16
	at       time.Duration
	changed  uint64
	why      string // see Config.Why
}

// denials holds the latest denied packets, a bounded number per source and interval. It is
// not safe for concurrent use.
type denials struct {
	epoch    time.Time // the zero of all times
	latest   []denial  // a ring once it is full
	next     int       // index of the oldest of latest, which the next one replaces
	begun    time.Duration
	sources  map[netip.Addr]int // denials recorded in this interval
	withheld uint64             // denied packets that were not recorded
}

func newDenials(epoch time.Time) *denials {
	return &denials{epoch: epoch, sources: make(map[netip.Addr]int)}
}

// add records the first packet of d, and returns its denial, if its source has a share left.
// Otherwise it returns nil. learned resolves names, and number is that of the change.
func (l *denials) add(d *decided, learned policy.Learned, number uint64) *denial {
	at := d.first.Sub(l.epoch)
	if at-l.begun >= denialInterval {
		l.begun = at
		clear(l.sources)
	}
	source := d.responsible()
	n, known := l.sources[source]
	if !known && len(l.sources) >= denialSources {
		source = netip.Addr{}
		n = l.sources[source]
	}
	if n >= denialsPerSource {
		l.withheld += d.count
		return nil
	}
	l.withheld += d.count - 1
	l.sources[source] = n + 1
	from, to := d.ends()
	return l.put(denial{key: keyOf(d, from, to, learned), from: podOf(from), to: podOf(to), srcPort: d.packet.Src.Port(), at: at, changed: number})
}

// put records d. The result is valid until the next call.
func (l *denials) put(d denial) *denial {
	if len(l.latest) < maxDenials {
		l.latest = append(l.latest, d)
		return &l.latest[len(l.latest)-1]
	}
	at := &l.latest[l.next]
	*at = d
	l.next = (l.next + 1) % maxDenials
	return at
}

// ordered returns the denials that changed after since, the oldest first.
func (l *denials) ordered(since uint64) []denial {
	var found []denial
	for i := range l.latest {
		if d := l.latest[(l.next+i)%len(l.latest)]; d.changed > since {
			found = append(found, d)
		}
	}
	return found
}
