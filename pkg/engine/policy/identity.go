package policy

import (
	"encoding/binary"
	"sync/atomic"
)

// The identity of a pod encodes everything that the rules of a chain read from it. Pods with the
// same identity are selected by the same rules, so one evaluation serves them all, including pods
// created later.

const (
	// maxIdentified limits the ports in an identity. A pod with more of them, or with more labels
	// than maxPacked, has no identity: looking them all up would take too long while a packet
	// waits.
	maxIdentified = 32
	// identityBytes is enough for nearly all identities.
	identityBytes = 256
	// isPod is the first byte of the identity of a peer.
	isPod = 1
)

// Version stands for everything that rules read from an endpoint as a peer or as a destination:
// endpoints with the same Version are equal to rules. It notes the latest answers for them, so most
// packets need no identity.
type Version struct {
	notes [2]atomic.Pointer[answer]
}

// NewVersion returns a Version unlike any other.
func NewVersion() *Version { return &Version{} }

// noteOf returns the slot for the latest answer. A chain's answers for peers and for ports use
// different slots.
func (v *Version) noteOf(index, port uint64) *atomic.Pointer[answer] {
	if port != 0 {
		index++
	}
	return &v.notes[index%uint64(len(v.notes))]
}

// latest returns the rules that p matches if they are noted, else nil. Only answers for a pod alone
// are.
func (x *index) latest(p peer, port uint64) *set {
	if p.pod == nil || p.withoutPod() != (peer{}) {
		return nil
	}
	a := p.pod.Version.noteOf(x.id, port).Load()
	if a == nil || a.index != x.id || a.port != port {
		return nil
	}
	return a.known()
}

// note makes a the latest answer of p.
func (a *answer) note(p peer) {
	if p.pod != nil && p.withoutPod() == (peer{}) {
		p.pod.Version.noteOf(a.index, a.port).Store(a)
	}
}

// identify appends the identity of p's pod; it appends nothing if p is not a pod. If the pod has no
// identity, it returns its Version.
func (x *index) identify(p peer, port uint64, id []byte) (_ *Version, identity []byte) {
	identified := true
	switch {
	case p.pod == nil:
		return nil, id
	case port != 0:
		id, identified = x.identifyPorts(id, p.pod.portsFor(port))
	default:
		id, identified = x.peers.identify(id, p.pod)
	}
	if !identified {
		return p.pod.Version, id
	}
	return nil, id
}

// identifyPorts appends the ports whose names occur in rules.
func (x *index) identifyPorts(id []byte, ports []NamedPort) (_ []byte, ok bool) {
	if len(ports) > maxIdentified {
		return id, false
	}
	for _, p := range ports {
		if _, ok := x.named[portName{p.Name, p.Proto}]; ok {
			id = binary.AppendUvarint(append(id, byte(p.Proto)), uint64(len(p.Name)))
			id = append(id, p.Name...)
		}
	}
	return id, true
}

// identify appends isPod and the numbers of the traits that t reads from e.
func (t *peerTable) identify(id []byte, e *Endpoint) (_ []byte, ok bool) {
	if t.compares || e.Labels.isMany() || e.NamespaceLabels.isMany() {
		return id, false
	}
	id = append(id, isPod)
	t.traitsOfPod(e, func(n uint32) { id = binary.NativeEndian.AppendUint32(id, n) })
	return id, true
}
