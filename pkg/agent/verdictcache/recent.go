package verdictcache

import (
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// recentClasses is how many classes with recent packets are distinguished.
const recentClasses = 1 << 16

// recent counts recent packets by class. It takes no lock, because almost every packet of a
// flood is the only one of its class: a packet may be missed, or be counted for another class
// with an equal hash.
type recent struct {
	seed  packet.Seed
	epoch time.Time
	// A slot holds 40 bits of a hash, then the time of the first packet in seconds since
	// epoch in 16 bits, then the number of packets in 8 bits.
	slots [recentClasses]atomic.Uint64
}

const (
	countBits  = 8
	secondBits = 16
	maxCount   = 1<<countBits - 1
)

func newRecent() *recent { return &recent{seed: packet.NewSeed(), epoch: time.Now()} }

// count adds a packet of class and returns how many there were in the given time. Classes
// with the same slot displace each other.
func (r *recent) count(class packet.Class, now time.Time, within time.Duration) int {
	hash := class.Packet().Hash(r.seed)
	slot := &r.slots[hash%recentClasses]
	second := uint16(now.Sub(r.epoch) / time.Second)
	tag := hash >> (countBits + secondBits) << (countBits + secondBits)
	word := slot.Load()
	since := uint16(word >> countBits)
	if word&^(1<<(countBits+secondBits)-1) != tag || time.Duration(second-since)*time.Second > within {
		word = tag | uint64(second)<<countBits
	}
	if word&maxCount < maxCount {
		word++
	}
	slot.Store(word)
	return int(word & maxCount)
}
