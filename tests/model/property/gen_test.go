package property

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"

	networkingv1 "k8s.io/api/networking/v1"

	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// gen makes random clusters.
type gen struct{ *random.Gen }

// The evaluator treats many rules differently from few.
const fewRules, manyRules = 3, 16

func newGen(seed uint64) *gen {
	return generate(rand.NewPCG(seed, 0))
}

func generate(source rand.Source) *gen {
	return &gen{&random.Gen{Rand: rand.New(source), Namespaces: namespaceNames, CIDRs: random.CIDRs, Rules: fewRules}}
}

// newGenFromBytes takes each choice from one byte of data while there is any, so that a fuzzer can
// change single choices.
func newGenFromBytes(data []byte) *gen {
	h := fnv.New64a()
	h.Write(data)
	return generate(&byteSource{data, rand.NewPCG(h.Sum64(), 0)})
}

type byteSource struct {
	data []byte
	rest rand.Source
}

// Uint64 spreads a byte over the whole word, because rand takes small numbers from the high bits.
func (s *byteSource) Uint64() uint64 {
	if len(s.data) == 0 {
		return s.rest.Uint64()
	}
	b := s.data[0]
	s.data = s.data[1:]
	return uint64(b) * 0x0101010101010101
}

// namespaceNames are the namespaces of pods and policies.
var namespaceNames = []string{"n1", "n2", "n3", "n4"}

func (g *gen) cluster() oracle.Cluster {
	c := oracle.Cluster{EndPort: !g.OneIn(5), SCTP: !g.OneIn(5), NodePeers: !g.OneIn(6), DomainNames: !g.OneIn(6), IngressByAddress: !g.OneIn(6)}
	g.Rules = fewRules
	if g.OneIn(6) {
		g.Rules = manyRules
	}
	inUse := namespaceNames[:1+g.IntN(len(namespaceNames))]
	for _, name := range inUse {
		if !g.OneIn(4) {
			c.Namespaces = append(c.Namespaces, g.Namespace(name))
		}
	}
	c.Nodes = g.nodes()
	c.Pods = g.pods(inUse)
	c.NetworkPolicies = g.policies(inUse)
	c.ServiceAccounts = c.EndPort // no choice of its own: past seeds give the same clusters
	if !g.OneIn(3) {
		g.administrators(&c)
	}
	c.GroupPeers, c.CIDRGroups = c.SCTP, g.CIDRGroups(c.ClusterNetworkPolicies)
	return c
}

func (g *gen) policies(namespaces []string) []*networkingv1.NetworkPolicy {
	var policies []*networkingv1.NetworkPolicy
	for i := range g.IntN(6) {
		policies = append(policies, g.NetworkPolicy(random.Pick(g, namespaces...), fmt.Sprintf("np%d", i)))
	}
	return policies
}

// administrators adds policies of every kind. Names and priorities are few, so that there are ties
// within a kind and between kinds.
func (g *gen) administrators(c *oracle.Cluster) {
	for i := range g.IntN(4) {
		c.AdminNetworkPolicies = append(c.AdminNetworkPolicies, g.AdminNetworkPolicy(fmt.Sprintf("p%d", i)))
	}
	for i := range g.IntN(4) {
		c.ClusterNetworkPolicies = append(c.ClusterNetworkPolicies, g.ClusterNetworkPolicy(fmt.Sprintf("p%d", i)))
	}
	for _, name := range random.Pick(g, nil, []string{"default"}, []string{"default"}, []string{"other"}, []string{"other", "default"}) {
		c.BaselineAdminNetworkPolicies = append(c.BaselineAdminNetworkPolicies, g.BaselineAdminNetworkPolicy(name))
	}
}

// namesOfAddresses are the names that pods have learned.
var namesOfAddresses = []string{"x.test", "a.x.test", "b.a.x.test", "ax.test", "y.test", "x.n1.svc.cluster.local"}
