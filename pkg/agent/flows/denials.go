package flows

import (
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// maxDenials is how many denials are recorded. A further one replaces the oldest.
const maxDenials = 512

// denial is one denied packet.
type denial struct {
	key
	from, to podName
	srcPort  uint16
	at       time.Duration
	changed  uint64
	why      string // see Config.Why
}

// denials holds the latest denied packets. It is not safe for concurrent use.
type denials struct {
	latest []denial // a ring once it is full
	next   int      // index of the oldest of latest, which the next one replaces
}

// deny records and logs the first packet of d, if there is room for it. f is its flow, nil if that
// was lost. The caller holds r.mu.
func (r *Recorder) deny(d *decided, f *flow) {
	if !r.denied.admits(d) {
		return
	}
	from, to := d.ends()
	why := ""
	if r.cfg.Why != nil && d.decision.Direction == policy.Egress {
		why = r.cfg.Why(d.snapshot, policy.Query{Packet: d.packet, Defer: true}, d.first)
		if f != nil {
			f.why = why
		}
	}
	r.denials.put(denial{
		key: keyOf(d, from, to, r.cfg.Learned), from: podOf(from), to: podOf(to), srcPort: d.packet.Src.Port(),
		at: d.first.Sub(r.epoch), changed: r.table.next(), why: why,
	})
	r.denied.log(d, &d.decision, d.snapshot, why)
}

// put records d.
func (l *denials) put(d denial) {
	if len(l.latest) < maxDenials {
		l.latest = append(l.latest, d)
		return
	}
	l.latest[l.next] = d
	l.next = (l.next + 1) % maxDenials
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
