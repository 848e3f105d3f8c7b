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

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// name identifies an end: a pod, or an address that belonged to no known pod.
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

// flowKey identifies a flow. Records with the same key are added up.
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

// flow is all records of one source, destination, protocol and port.
type flow struct {
	flowKey
	denied  bool   // according to some node's last record
	count   uint64 // packets, a lower bound
	reason  string // of some node's last decision
	audited bool   // audited policies would decide otherwise
	names   []string
	several string // the block or domain to which one end, a single address, belongs
	// mayBeLate is set if all its records come from agents that record late packets as flows.
	mayBeLate bool
}

// seen is what one node has recorded of a flow.
type seen struct {
	last   time.Time
	record *flows.Record // the last one
	// counts are the packets by decision. A log repeats a record with growing counts, so the
	// highest one is the sum.
	counts map[string]uint64
	// mayBeLate is set unless an agent that leaves out late packets recorded part of it.
	mayBeLate bool
}

// collect returns the flows of the namespace in order.
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
	for k, byNode := range nodes {
		all = append(all, merge(k, byNode, names[k.destination.addr]))
	}
	slices.SortFunc(all, func(a, b *flow) int { return a.compare(b.flowKey) })
	return all
}

func (s *seen) add(r *flows.Record) {
	if s.record == nil || r.Last.After(s.last) {
		s.record, s.last = r, *r.Last
	}
	// Records with the same decision and audit count the same packets. Both fields can always
	// be encoded.
	decision, _ := json.Marshal([]any{r.Decision, r.Audit})
	s.counts[string(decision)] = max(s.counts[string(decision)], r.Count)
}

// merge combines the records of all nodes. It takes the highest count instead of the sum,
// because both nodes of a flow may have counted the same packets.
func merge(k flowKey, byNode map[string]*seen, names []string) *flow {
	f := &flow{flowKey: k, mayBeLate: true}
	for _, node := range sortedKeys(byNode) {
		s, sum := byNode[node], uint64(0)
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

// alwaysAllowed reports whether no NetworkPolicy decides about the flow, because it is
// between a pod and its own node or itself.
func (f *flow) alwaysAllowed() bool {
	return !f.denied && !f.audited && (f.reason == policy.OwnNode.String() || f.reason == policy.Hairpin.String())
}

// parsePort returns the port, or the reason why no rule can name it.
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
