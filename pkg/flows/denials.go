package flows

import (
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

const (
	// maxDenials are recorded. A further one takes the place of the oldest.
	maxDenials = 512
	// denialInterval and denialsPerSource are the rate at which denials of one source are
	// recorded.
	denialInterval   = 10 * time.Second
	denialsPerSource = 5
	// denialSources are distinguished in an interval. All further ones count as one.
	denialSources = 1024
)

// denial is one denied packet.
type denial struct {
	key
	from, to podName
	srcPort  uint16
	at       time.Duration
	changed  uint64
}

// denials are the latest denied packets, as far as their sources have a share. It is not
// safe for concurrent use.
type denials struct {
	epoch    time.Time // from which times are measured
	latest   []denial  // a ring once it is full
	next     int       // the oldest of latest, or where the next one goes
	begun    time.Duration
	sources  map[netip.Addr]int // how many were recorded in this interval
	withheld uint64             // denied packets that were not recorded
}

func newDenials(epoch time.Time) *denials {
	return &denials{epoch: epoch, sources: make(map[netip.Addr]int)}
}

// add records the first of packets that were denied if its source has a share left.
func (l *denials) add(d *decided, learned policy.Learned, number uint64) {
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
		return
	}
	l.withheld += d.count - 1
	l.sources[source] = n + 1
	from, to := d.ends()
	l.put(denial{key: keyOf(d, from, to, learned), from: podOf(from), to: podOf(to), srcPort: d.packet.Src.Port(), at: at, changed: number})
}

func (l *denials) put(d denial) {
	if len(l.latest) < maxDenials {
		l.latest = append(l.latest, d)
		return
	}
	l.latest[l.next] = d
	l.next = (l.next + 1) % maxDenials
}

// ordered returns the denials from the oldest on that changed after since.
func (l *denials) ordered(since uint64) []denial {
	var found []denial
	for i := range l.latest {
		if d := l.latest[(l.next+i)%len(l.latest)]; d.changed > since {
			found = append(found, d)
		}
	}
	return found
}
