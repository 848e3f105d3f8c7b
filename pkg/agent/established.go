package agent

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/conntrack"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
)

// newBlocker returns nil if established connections are not blocked.
func newBlocker(cfg Config, reg prometheus.Registerer) (*conntrack.Blocker, error) {
	if cfg.BlockMark == 0 {
		return nil, nil
	}
	return conntrack.New(conntrack.Config{Mark: cfg.BlockMark, Registerer: reg})
}

// established blocks connections that s denies permanently. Connections that depend on
// an unknown pod, or on names that may have expired, stay as they are.
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

// anyName gives each address all names in the policies of the pod. A connection outlives
// the names that it was allowed by: it is blocked only if it is denied whatever the
// names. It belongs to one goroutine.
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
