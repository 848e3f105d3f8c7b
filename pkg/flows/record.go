package flows

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/printable"
)

// The types of records.
const (
	TypeAgent  = "agent"  // an agent and how many records it has: the first of each answer
	TypeFlow   = "flow"   // decisions that are alike
	TypeDenial = "denial" // one denied packet
	TypeRule   = "rule"   // what a rule of a policy decided
)

// The values of Record.Verdict.
const (
	Allow = "allow"
	Deny  = "deny"
)

// Record is a line of what agents answer and log, as JSON. docs/flows.md has the fields.
type Record struct {
	Type string `json:"type"`
	// Node is that of the agent.
	Node string `json:"node"`
	// Time is when the agent has answered, or when a packet was denied.
	Time *time.Time `json:"time,omitempty"`

	Source      *End   `json:"source,omitempty"`
	Destination *End   `json:"destination,omitempty"`
	Protocol    string `json:"protocol,omitempty"`
	// Port is that of the destination, 0 where the protocol has none.
	Port uint16 `json:"port,omitempty"`

	Decision
	// Audit is the decision with audited policies, if it has another verdict.
	Audit *Decision `json:"audit,omitempty"`

	// Count is the number of packets that were decided.
	Count uint64 `json:"count,omitempty"`
	// Bytes are those of the connections of an allowed flow that were open lately, in both
	// directions. Nil if the kernel does not count them.
	Bytes *uint64    `json:"bytes,omitempty"`
	First *time.Time `json:"first,omitempty"`
	Last  *time.Time `json:"last,omitempty"`
	// Remembered is since when the kernel remembers the verdict, and decides packets like
	// these without the agent. Nil if it does not.
	Remembered *time.Time `json:"remembered,omitempty"`

	*Summary
}

// Summary is about all records of an agent since it was started.
type Summary struct {
	// Cursor is where to go on: Filter.After of the next read has what changed since.
	Cursor string `json:"cursor"`
	// Started is when it was started. Agents of earlier versions do not say that.
	Started *time.Time `json:"started,omitempty"`
	// AuditOnly says that it enforces no policy.
	AuditOnly bool `json:"auditOnly,omitempty"`
	// Flows is how many there are, of at most MaxFlows.
	Flows    int `json:"flows"`
	MaxFlows int `json:"maxFlows"`
	// Evicted flows had to make room for others.
	Evicted uint64 `json:"evicted"`
	// Lost decisions are in no flow, or with Filter.Rules count for no rule: they came faster
	// than they were added up.
	Lost uint64 `json:"lost"`
	// Withheld denied packets are in flows, but are no records of their own.
	Withheld uint64 `json:"withheld"`
	// Late packets were decided and do not begin a connection: they are in no flow. Agents of
	// earlier versions have them in flows, and do not say how many: nil.
	Late *uint64 `json:"late,omitempty"`
}

// End is the source or the destination of a packet.
type End struct {
	// Namespace and Pod are empty if the address is no known pod's.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Address is that of the packet. An allowed flow with a Block or a Domain has the first
	// of several.
	Address netip.Addr `json:"address"`
	// Block or Domain is the item of the rule that decided that has matched the address. A
	// Domain with "*." is all names below it.
	Block  string `json:"block,omitempty"`
	Domain string `json:"domain,omitempty"`
	// Port is that of the source of a denied packet.
	Port uint16 `json:"port,omitempty"`
	// Names are domain names that the source has resolved to the address.
	Names []string `json:"names,omitempty"`
}

// Several returns the block or the domain of which e, an end of r, is the first address that
// was recorded. It is empty if r is about this address alone.
func (r *Record) Several(e *End) string {
	if r.Type != TypeFlow || r.Verdict == Deny || r.Audit != nil {
		return ""
	}
	return cmp.Or(e.Block, e.Domain)
}

// Decision is what policies decided.
type Decision struct {
	Verdict   string  `json:"verdict,omitempty"`
	Direction string  `json:"direction,omitempty"`
	Tier      string  `json:"tier,omitempty"`
	Reason    string  `json:"reason,omitempty"`
	Policy    *Policy `json:"policy,omitempty"`
	Rule      *int    `json:"rule,omitempty"`
}

// Policy is the policy that decided.
type Policy struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// maxLine is the longest line that Decode reads, in bytes.
const maxLine = 64 << 10

// Decode calls yield with each record of r, a line each. Records of types that are not known
// are passed over. The error is that of r, of yield, or names the line that is no record.
func Decode(r io.Reader, yield func(*Record) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	n := 0
	for lines.Scan() {
		n++
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var rec Record
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		known, err := rec.check()
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		if !known {
			continue
		}
		rec.sanitize()
		if err := yield(&rec); err != nil {
			return err
		}
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("line %d is longer than %d bytes", n+1, maxLine)
	}
	return lines.Err()
}

// sanitize makes all text of r printable: agents of earlier versions have not, and an agent may be
// lying.
func (r *Record) sanitize() {
	texts := []*string{&r.Node, &r.Protocol}
	for _, e := range []*End{r.Source, r.Destination} {
		if e != nil {
			e.Address = e.Address.WithZone(printable.Text(e.Address.Zone()))
			texts = append(texts, &e.Namespace, &e.Pod, &e.Block, &e.Domain)
			for i := range e.Names {
				texts = append(texts, &e.Names[i])
			}
		}
	}
	for _, d := range []*Decision{&r.Decision, r.Audit} {
		if d == nil {
			continue
		}
		texts = append(texts, &d.Direction, &d.Tier, &d.Reason)
		if d.Policy != nil {
			texts = append(texts, &d.Policy.Kind, &d.Policy.Namespace, &d.Policy.Name)
		}
	}
	if r.Summary != nil {
		texts = append(texts, &r.Cursor)
	}
	for _, text := range texts {
		*text = printable.Text(*text)
	}
}

// check reports whether the type of r is known, and returns an error if a field is missing
// or wrong.
func (r *Record) check() (known bool, err error) {
	var missing []error
	need := func(field string, there bool) {
		if !there {
			missing = append(missing, fmt.Errorf("%s: no %s", r.Type, field))
		}
	}
	switch r.Type {
	case TypeAgent:
		need("time", r.Time != nil)
		need("cursor", r.Summary != nil)
	case TypeFlow:
		need("count", r.Count > 0)
		need("first", r.First != nil)
		need("last", r.Last != nil)
	case TypeDenial:
		need("time", r.Time != nil)
	case TypeRule:
		need("policy", r.Policy != nil)
		need("count", r.Count > 0)
		need("last", r.Last != nil)
	case "":
		return false, errors.New("no type")
	default:
		return false, nil
	}
	need("node", r.Node != "")
	if r.Type == TypeFlow || r.Type == TypeDenial {
		need("source", r.Source != nil && r.Source.Address.IsValid())
		need("destination", r.Destination != nil && r.Destination.Address.IsValid())
		need("protocol", r.Protocol != "")
	}
	if r.Type != TypeAgent {
		for _, d := range []*Decision{&r.Decision, r.Audit} {
			if d != nil && d.Verdict != Allow && d.Verdict != Deny {
				missing = append(missing, fmt.Errorf("%s: verdict %q: must be %s or %s", r.Type, d.Verdict, Allow, Deny))
			}
		}
	}
	return true, errors.Join(missing...)
}
