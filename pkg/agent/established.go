package agent

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// newBlocker returns nil where established connections go on.
func newBlocker(cfg Config, reg prometheus.Registerer) (*conntrack.Blocker, error) {
	if cfg.BlockMark == 0 {
		return nil, nil
	}
	return conntrack.New(conntrack.Config{Mark: cfg.BlockMark, Registerer: reg})
}

// established has connections cut that s denies for good. What depends on a pod
// that is not known, no longer or not yet, or on names that were forgotten
// meanwhile, stays as it is.
func established(s *policy.Snapshot, learned policy.Learned) conntrack.Evaluator {
	anyName := &anyName{snapshot: s, names: make(map[*policy.Chain]*policy.Names)}
	return func(p packet.Packet, toHost bool) conntrack.Verdict {
		q := policy.Query{Packet: p, ToHost: toHost, Learned: learned}
		d := s.Evaluate(q)
		if d.Allowed() {
			return conntrack.Unblock
		}
		q.Learned = anyName
		if d.Reason == policy.UnknownPod || s.Evaluate(q).Allowed() {
			return conntrack.Keep
		}
		return conntrack.Block
	}
}

// anyName has pods know each address by all the names that their policies speak
// of. A connection outlives the time for which a name was learned: only what is
// denied whatever the names is to be cut. It belongs to one goroutine.
type anyName struct {
	snapshot *policy.Snapshot
	names    map[*policy.Chain]*policy.Names
}

// Names implements policy.Learned.
func (a *anyName) Names(pod, _ netip.Addr) *policy.Names {
	chain := a.snapshot.Endpoint(pod).Egress
	names, ok := a.names[chain]
	if !ok {
		names = namesOf(chain)
		a.names[chain] = names
	}
	return names
}

// namesOf returns a name for each domain of the chain.
func namesOf(chain *policy.Chain) *policy.Names {
	var names policy.Names
	for i := range chain.Rules {
		for _, peer := range chain.Rules[i].Peers {
			for _, d := range peer.Domains {
				name := d.Name
				if d.Below {
					name = "any." + name
				}
				names = append(names, name)
			}
		}
	}
	return &names
}
