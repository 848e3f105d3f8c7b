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
// endpoints with the same Version are equal to rules. It caches their latest memory entries.
type Version struct {
	notes [2]atomic.Pointer[handle]
}

// NewVersion returns a Version unlike any other.
func NewVersion() *Version { return &Version{} }

// note returns the slot for the latest entry of k. A chain's entries for peers and for ports use
// different slots.
func (v *Version) note(k key) *atomic.Pointer[handle] {
	n := k.index
	if k.port != 0 {
		n++
	}
	return &v.notes[n%uint64(len(v.notes))]
}

// latest returns the entry of k if it is the one used last for p, else nil.
func (k *key) latest(p peer) *entry {
	if p.pod == nil {
		return nil
	}
	h := p.pod.Version.note(*k).Load()
	if h == nil {
		return nil
	}
	e := h.Load()
	if e == nil || e.index != k.index || e.port != k.port || e.node != k.node || e.names != k.names || e.scope != k.scope {
		return nil
	}
	return e
}

// note makes e the latest entry of p.
func (e *entry) note(p peer) {
	if p.pod != nil {
		p.pod.Version.note(e.key).Store(e.handle)
	}
}

// identify appends the identity of p for k; it appends nothing if p is not a pod. If the pod has no
// identity, the returned key is for this pod alone.
func (k key) identify(x *index, p peer, id []byte) (_ key, identity []byte) {
	identified := true
	switch {
	case p.pod == nil:
	case k.port != 0:
		id, identified = x.identifyPorts(id, p.pod.portsFor(k.port))
	default:
		id, identified = x.peers.identify(id, p.pod)
	}
	if !identified {
		k.pod = p.pod.Version
	}
	return k, id
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
