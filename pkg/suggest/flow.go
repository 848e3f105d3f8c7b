package suggest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/flows"
	"sigs.k8s.io/kube-network-policies/pkg/packet"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/printable"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// name is the name of an end: a pod, or an address that is no known pod's.
type name struct {
	namespace, pod string
	addr           netip.Addr
}

func (n name) String() string {
	if n.pod == "" {
		return n.addr.String()
	}
	return printable.Text(n.namespace + "/" + n.pod)
}

func nameOf(e *flows.End) name { return name{e.Namespace, e.Pod, e.Address.Unmap().WithZone("")} }

// flowKey is what flows are added up by.
type flowKey struct {
	source, destination name
	protocol            string
	port                uint16
}

func (k flowKey) String() string {
	port := printable.Text(k.protocol)
	if k.port != 0 {
		port += fmt.Sprint(" ", k.port)
	}
	return fmt.Sprintf("%v -> %v, %s", k.source, k.destination, port)
}

// flow is the records of one source, destination, protocol and port.
type flow struct {
	flowKey
	denied  bool   // by the last record of some node
	count   uint64 // packets, at least
	reason  string // of the last decision of some node
	audited bool   // audited policies would decide otherwise
	names   []string
	several string // the block or the domain of which one end is one address
	// mayBeLate is set if it is recorded only by agents that have late packets in flows.
	mayBeLate bool
}

// seen is what one node has recorded of a flow.
type seen struct {
	last   time.Time
	record *flows.Record // the last
	// counts are the packets of each decision. A log has a record several times, with
	// counts that grow.
	counts map[string]uint64
	// mayBeLate is set if agents that have late packets in flows recorded all of it.
	mayBeLate bool
}

// collect returns the flows of the namespace, in order.
func collect(in *Input) []*flow {
	nodes := map[flowKey]map[string]*seen{}
	names := map[netip.Addr][]string{}
	leftOut := lateLeftOut(in.Records)
	for i := range in.Records {
		r := &in.Records[i]
		if r.Type != flows.TypeFlow {
			continue
		}
		k := flowKey{nameOf(r.Source), nameOf(r.Destination), r.Protocol, r.Port}
		if !k.source.in(in.Namespace) && !k.destination.in(in.Namespace) {
			continue
		}
		if nodes[k] == nil {
			nodes[k] = map[string]*seen{}
		}
		s := nodes[k][r.Node]
		if s == nil {
			s = &seen{counts: map[string]uint64{}, mayBeLate: true}
			nodes[k][r.Node] = s
		}
		s.add(r)
		if since, known := leftOut[r.Node]; known && !r.First.Before(since) {
			s.mayBeLate = false
		}
		names[k.destination.addr] = append(names[k.destination.addr], r.Destination.Names...)
	}
	var all []*flow
	for k, of := range nodes {
		all = append(all, merge(k, of, names[k.destination.addr]))
	}
	slices.SortFunc(all, func(a, b *flow) int { return a.compare(b.flowKey) })
	return all
}

func (s *seen) add(r *flows.Record) {
	if s.record == nil || r.Last.After(s.last) {
		s.record, s.last = r, *r.Last
	}
	// What is equal in these fields has been decided alike. They can always be encoded.
	decision, _ := json.Marshal([]any{r.Decision, r.Audit})
	s.counts[string(decision)] = max(s.counts[string(decision)], r.Count)
}

// merge adds up what the nodes have recorded. Both nodes of a flow may have counted the same
// packets.
func merge(k flowKey, of map[string]*seen, names []string) *flow {
	f := &flow{flowKey: k, mayBeLate: true}
	for _, node := range sortedKeys(of) {
		s, sum := of[node], uint64(0)
		for _, n := range s.counts {
			sum += n
		}
		f.count = max(f.count, sum)
		f.denied = f.denied || s.record.Verdict == flows.Deny
		f.audited = f.audited || s.record.Audit != nil
		f.mayBeLate = f.mayBeLate && s.mayBeLate
		f.reason = s.record.Reason
		f.several = cmp.Or(f.several, printable.Text(s.record.Several(s.record.Source)+s.record.Several(s.record.Destination)))
	}
	for _, n := range names {
		f.names = append(f.names, printable.Text(n))
	}
	slices.Sort(f.names)
	f.names = slices.Compact(f.names)
	return f
}

func (n name) in(namespace string) bool { return n.pod != "" && n.namespace == namespace }

func (n name) compare(o name) int {
	return cmp.Or(strings.Compare(n.namespace, o.namespace), strings.Compare(n.pod, o.pod), n.addr.Compare(o.addr))
}

func (k flowKey) compare(o flowKey) int {
	return cmp.Or(k.source.compare(o.source), k.destination.compare(o.destination), strings.Compare(k.protocol, o.protocol), cmp.Compare(k.port, o.port))
}

// alwaysAllowed reports whether no NetworkPolicy has a say: a pod with its own node, or with
// itself.
func (f *flow) alwaysAllowed() bool {
	return !f.denied && !f.audited && (f.reason == policy.OwnNode.String() || f.reason == policy.Hairpin.String())
}

// parsePort returns the port, or why no rule can have it.
func (f *flow) parsePort(features compile.Features) (reachability.Port, error) {
	for _, proto := range []packet.Proto{packet.TCP, packet.UDP, packet.SCTP} {
		switch {
		case f.protocol != proto.String():
		case f.port == 0:
			return reachability.Port{}, errors.New("its port could not be read, and rules name ports")
		case proto == packet.SCTP && !features.SCTP:
			return reachability.Port{}, errors.New("SCTP is switched off by --feature-gates")
		default:
			return reachability.Port{Proto: proto, Number: f.port}, nil
		}
	}
	return reachability.Port{}, errors.New("NetworkPolicy has rules for TCP, UDP and SCTP only")
}

func portTitle(p reachability.Port) string { return fmt.Sprintf("%v %d", p.Proto, p.Number) }
