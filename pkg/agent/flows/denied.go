package flows

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// DeniedPath is the path where agents serve recent denials.
const DeniedPath = "/denials"

const (
	// DeniedWindow is how long a denial counts as recent.
	DeniedWindow = time.Hour
	// deniedSlots is the number of parts of DeniedWindow that are counted separately.
	deniedSlots = 12
	slotLength  = DeniedWindow / deniedSlots
	// MaxPairs is how many pairs are named per policy.
	MaxPairs = 3
)

// Denied is what the policies of one agent denied in the last hour, or would have denied if
// audited policies were enforced.
type Denied struct {
	Node     string           `json:"node"`
	Policies []DeniedByPolicy `json:"policies"`
}

// DeniedByPolicy is what one policy denied.
type DeniedByPolicy struct {
	Policy
	// Audited is set if the policy is audited: it would have denied the packets.
	Audited bool `json:"audited,omitempty"`
	// Total is the number of packets denied since the start of the agent, and Count that of
	// the last hour, accurate to five minutes.
	Total uint64 `json:"total"`
	Count uint64 `json:"count"`
	// Ago is the age of the last denial in seconds.
	Ago int64 `json:"ago"`
	// Pairs are up to MaxPairs of the pairs denied last: "web-0 to db-0, TCP 5432". A pod of
	// the policy's namespace is shown by name, another pod by its namespace only, and any
	// other end by its address.
	Pairs []string `json:"pairs"`
}

// deniedKey identifies a policy that denied packets, or would have.
type deniedKey struct {
	policy  policyName
	audited bool
}

// deniedCount counts the packets that a policy denied, by slot of the last hour.
type deniedCount struct {
	total uint64
	last  time.Duration
	slot  int64               // the latest slot since the epoch
	slots [deniedSlots]uint32 // each saturates
}

// advance makes slot the latest one.
func (c *deniedCount) advance(slot int64) {
	for c.slot < slot {
		c.slot = max(c.slot+1, slot-deniedSlots+1)
		c.slots[c.slot%deniedSlots] = 0
	}
}

// recent returns the packets of the last hour.
func (c *deniedCount) recent() (sum uint64) {
	for _, n := range c.slots {
		sum += uint64(n)
	}
	return sum
}

// deniedPolicies counts denials by policy, in bounded memory. It is not safe for concurrent
// use.
type deniedPolicies map[deniedKey]*deniedCount

// add counts packets denied by d. audited says that d is the decision with audited policies.
func (p deniedPolicies) add(d *policy.Decision, audited bool, packets uint64, last time.Duration) {
	if d.Policy == nil || d.Allowed() {
		return
	}
	k := deniedKey{policyName{d.Policy.Kind, d.Policy.Namespace, d.Policy.Name}, audited}
	c := p[k]
	if c == nil {
		if len(p) >= bounds.DeniedPolicies {
			p.makeRoom(k.policy.namespace, last)
		}
		c = &deniedCount{}
		p[k] = c
	}
	c.advance(int64(last / slotLength))
	slot := &c.slots[c.slot%deniedSlots]
	*slot = uint32(min(uint64(*slot)+packets, math.MaxUint32))
	c.total += packets
	c.last = max(c.last, last)
}

// makeRoom removes policies that have denied nothing for an hour. If there are none, it takes
// the namespace with most policies and removes the one that denied least recently, so that a
// namespace with many policies displaces its own.
func (p deniedPolicies) makeRoom(namespace string, now time.Duration) {
	before := len(p)
	perNamespace := map[string]int{namespace: 1}
	for k, c := range p {
		if now-c.last >= DeniedWindow {
			delete(p, k)
		} else {
			perNamespace[k.policy.namespace]++
		}
	}
	if len(p) < before {
		return
	}
	most := 0
	for _, n := range perNamespace {
		most = max(most, n)
	}
	var oldest *deniedKey
	for k, c := range p {
		if perNamespace[k.policy.namespace] == most && (oldest == nil || cmp.Or(cmp.Compare(c.last, p[*oldest].last), k.compare(*oldest)) < 0) {
			oldest = &k
		}
	}
	delete(p, *oldest)
}

func (k deniedKey) compare(o deniedKey) int {
	return cmp.Or(strings.Compare(k.policy.kind, o.policy.kind), strings.Compare(k.policy.namespace, o.policy.namespace),
		strings.Compare(k.policy.name, o.policy.name), compareBools(k.audited, o.audited))
}

// Denied returns what policies denied in the last hour, ordered by policy.
func (r *Recorder) Denied() *Denied {
	r.drain()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.since()
	answer := &Denied{Node: r.cfg.Node, Policies: []DeniedByPolicy{}}
	pairs := r.pairs()
	for k, c := range r.denying {
		c.advance(int64(now / slotLength))
		recent := c.recent()
		if recent == 0 {
			continue
		}
		answer.Policies = append(answer.Policies, DeniedByPolicy{
			Policy:  Policy{Kind: k.policy.kind, Namespace: k.policy.namespace, Name: k.policy.name},
			Audited: k.audited, Total: c.total, Count: recent, Ago: int64(max(0, now-c.last) / time.Second), Pairs: pairs[k],
		})
	}
	slices.SortFunc(answer.Policies, func(a, b DeniedByPolicy) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), compareBools(a.Audited, b.Audited))
	})
	return answer
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// pairs returns by policy the pairs of the flows that it denied last. The caller holds r.mu.
func (r *Recorder) pairs() map[deniedKey][]string {
	found := map[deniedKey][]string{}
	add := func(f *flow, v *verdict, audited bool) {
		k := deniedKey{v.policy, audited}
		if r.denying[k] == nil || len(found[k]) == MaxPairs {
			return
		}
		if pair := f.pair(v.policy.namespace); !slices.Contains(found[k], pair) {
			found[k] = append(found[k], pair)
		}
	}
	for f := r.table.all.newest; f != nil; f = f.links[allFlows].older {
		if f.action == policy.Deny {
			add(f, &f.verdict, false)
		}
		if f.audited && f.would.action == policy.Deny {
			add(f, &f.would, true)
		}
	}
	return found
}

// pair describes source and destination for readers of the policies of a namespace, empty for
// cluster-scoped policies. It names no pods of other namespaces.
func (f *flow) pair(namespace string) string {
	end := func(p podName, addr fmt.Stringer) string {
		switch {
		case p == podName{}:
			return addr.String()
		case p.namespace == namespace:
			return p.name
		}
		return "a pod of namespace " + p.namespace
	}
	text := end(f.from, f.src) + " to " + end(f.to, f.dst) + ", " + f.proto.String()
	if f.port > 0 {
		text += fmt.Sprintf(" %d", f.port)
	}
	return text
}

// ServeDenied serves the result of Denied as JSON.
func (r *Recorder) ServeDenied(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	// An error means that the client is gone.
	_ = json.NewEncoder(w).Encode(r.Denied())
}

// DecodeDenied reads an answer of ServeDenied. It refuses answers that exceed the bounds of an
// agent.
func DecodeDenied(r io.Reader) (*Denied, error) {
	limited := &io.LimitedReader{R: r, N: bounds.DeniedBytes}
	var answer struct {
		Node     string          `json:"node"`
		Policies boundedPolicies `json:"policies"`
	}
	err := json.NewDecoder(limited).Decode(&answer)
	switch {
	case limited.N == 0:
		return nil, fmt.Errorf("the answer is longer than %d bytes", bounds.DeniedBytes)
	case err != nil:
		return nil, err
	case answer.Node == "":
		return nil, errors.New("the answer has no node")
	}
	return &Denied{answer.Node, answer.Policies}, nil
}

// boundedPolicies decodes at most bounds.DeniedPolicies: even an answer within bounds.DeniedBytes
// could have far more.
type boundedPolicies []DeniedByPolicy

// UnmarshalJSON implements json.Unmarshaler.
func (p *boundedPolicies) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('[') {
		return errors.New("the policies are no list")
	}
	for d.More() {
		if len(*p) == bounds.DeniedPolicies {
			return fmt.Errorf("the answer has more than %d policies", bounds.DeniedPolicies)
		}
		var one DeniedByPolicy
		if err := d.Decode(&one); err != nil {
			return err
		}
		one.Pairs = slices.Clip(slices.Clone(one.Pairs[:min(len(one.Pairs), MaxPairs)]))
		*p = append(*p, one)
	}
	return nil
}
