package policy

import (
	"encoding/binary"
	"sync/atomic"
)

// The identity of a pod is what the rules of a chain read of it: pods of one identity
// are selected by the same rules. So what is evaluated for one of them holds for all,
// also for those that are made later.

const (
	// maxIdentified is how many ports are part of an identity. With more of them, and
	// with more labels than maxPacked, a pod has none: a packet does not wait until so
	// many are looked up.
	maxIdentified = 32
	// identityBytes is room for nearly all identities.
	identityBytes = 256
	// isPod is the first byte of the identity of a peer.
	isPod = 1
)

// Version is all that is read of an endpoint as a peer, and as a destination: endpoints
// with the same one are the same. It notes what is remembered of them.
type Version struct {
	notes [2]atomic.Pointer[handle]
}

// NewVersion returns a Version that no endpoint has.
func NewVersion() *Version { return &Version{} }

// note returns where the latest entry of k is noted. Entries of one chain for peers and
// those for ports have different places.
func (v *Version) note(k key) *atomic.Pointer[handle] {
	n := k.index
	if k.port != 0 {
		n++
	}
	return &v.notes[n%uint64(len(v.notes))]
}

// latest returns the entry of k if it is the latest one that was used for p, else nil.
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

// identify appends the identity of p for k, nothing if p is no pod. If p has no identity,
// the key that is returned is that of the pod alone.
func (k key) identify(x *index, p peer, id []byte) (_ key, identity []byte) {
	common := true
	switch {
	case p.pod == nil:
	case k.port != 0:
		id, common = x.identifyPorts(id, p.pod.portsFor(k.port))
	default:
		id, common = x.peers.identify(id, p.pod)
	}
	if !common {
		k.pod = p.pod.Version
	}
	return k, id
}

// identifyPorts appends those of the ports that have a name which rules have.
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

// identify appends the numbers of what t reads of e, and that it is a pod.
func (t *peerTable) identify(id []byte, e *Endpoint) (_ []byte, ok bool) {
	if t.compares || e.Labels.isMany() || e.NamespaceLabels.isMany() {
		return id, false
	}
	id = append(id, isPod)
	t.traitsOfPod(e, func(n uint32) { id = binary.NativeEndian.AppendUint32(id, n) })
	return id, true
}
