package conntrack

import (
	"sync"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

const (
	// maxAccepted bounds the classes that are recorded between two reads.
	maxAccepted = 1 << 15
	// recentClasses is the size of the hash table that keeps repeated classes from being
	// recorded twice.
	recentClasses = 1 << 14
)

// accepted records the classes of packets that were accepted since the last read.
type accepted struct {
	wake func() // called when list is half full

	mu     sync.Mutex
	seed   packet.Seed
	recent []uint64 // hashes of recorded classes
	list   []class
	spare  []class
	lost   bool // a class did not fit into list
}

func newAccepted(wake func()) *accepted {
	return &accepted{
		wake:   wake,
		seed:   packet.NewSeed(),
		recent: make([]uint64, recentClasses),
		list:   make([]class, 0, maxAccepted),
		spare:  make([]class, 0, maxAccepted),
	}
}

// add records class c with its hash. It does not allocate.
func (a *accepted) add(c class, hash uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.recent[hash%recentClasses]
	switch {
	case *r == hash:
	case len(a.list) == cap(a.list):
		a.lost = true
	default:
		*r = hash
		a.list = append(a.list, c)
		if len(a.list) == cap(a.list)/2 {
			a.wake()
		}
	}
}

// read returns the recorded classes, which are valid until the next call, and whether some were
// lost.
func (a *accepted) read() (list []class, lost bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list, lost = a.list, a.lost
	a.list, a.spare, a.lost = a.spare[:0], a.list, false
	clear(a.recent)
	return list, lost
}
