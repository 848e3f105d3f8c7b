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

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
)

// The types of records.
const (
	TypeAgent  = "agent"  // an agent and its totals: the first record of each answer
	TypeFlow   = "flow"   // similar decisions
	TypeDenial = "denial" // one denied packet
	TypeRule   = "rule"   // the decisions of a rule of a policy
)

// The values of Record.Verdict.
const (
	Allow = "allow"
	Deny  = "deny"
)

// Record is a line of JSON that agents serve and log. docs/modules/flows.md describes the fields.
type Record struct {
	Type string `json:"type"`
	// Node is that of the agent.
	Node string `json:"node"`
	// Time is when the agent answered, or when the packet was denied.
	Time *time.Time `json:"time,omitempty"`

	Source      *End   `json:"source,omitempty"`
	Destination *End   `json:"destination,omitempty"`
	Protocol    string `json:"protocol,omitempty"`
	// Port is that of the destination, 0 where the protocol has none.
	Port uint16 `json:"port,omitempty"`

	Decision
	// Audit is the decision with audited policies, if its verdict differs.
	Audit *Decision `json:"audit,omitempty"`

	// Why is why no domain name of a policy allowed a denied packet, the latest one of a flow
	// that has a denial of its own. It is empty if no name would allow it.
	Why string `json:"why,omitempty"`

	// Count is the number of packets that were decided.
	Count uint64 `json:"count,omitempty"`
	// Bytes counts both directions of the recently open connections of an allowed flow. Nil
	// if the kernel does not count bytes.
	Bytes *uint64    `json:"bytes,omitempty"`
	First *time.Time `json:"first,omitempty"`
	Last  *time.Time `json:"last,omitempty"`
	// Remembered is since when the kernel remembers the verdict and decides such packets
	// without the agent. Nil if it does not.
	Remembered *time.Time `json:"remembered,omitempty"`

	*Summary
	*module.State // nil from agents of earlier versions, and in logs
}

// Summary describes all records of an agent since its start.
type Summary struct {
	// Cursor, as Filter.After of the next read, selects what changed since.
	Cursor string `json:"cursor"`
	// Started is the start of the agent. Agents of earlier versions omit it.
	Started *time.Time `json:"started,omitempty"`
	// AuditOnly is set if the agent enforces no policy.
	AuditOnly bool `json:"auditOnly,omitempty"`
	// Flows is the number of flows, at most MaxFlows.
	Flows    int `json:"flows"`
	MaxFlows int `json:"maxFlows"`
	// Evicted counts flows that were evicted for newer ones.
	Evicted uint64 `json:"evicted"`
	// Lost counts decisions that are in no flow, or with Filter.Rules in no rule, because
	// they came faster than they were added up.
	Lost uint64 `json:"lost"`
	// Withheld counts denied packets that are in flows but have no record of their own.
	Withheld uint64 `json:"withheld"`
	// Late counts decided packets that do not begin a connection: they are in no flow. It is
	// nil for agents of earlier versions, which have them in flows.
	Late *uint64 `json:"late,omitempty"`
}

// End is the source or the destination of a packet.
type End struct {
	// Namespace and Pod are empty if no known pod has the address.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	// Address is the address in the packet. An allowed flow with a Block or a Domain may have
	// several; this is the first.
	Address netip.Addr `json:"address"`
	// Block or Domain is the item of the deciding rule that matched the address. A Domain
	// with "*." matches all names below it.
	Block  string `json:"block,omitempty"`
	Domain string `json:"domain,omitempty"`
	// Port is the source port of a denied packet.
	Port uint16 `json:"port,omitempty"`
	// Names are domain names that the source has resolved to the address.
	Names []string `json:"names,omitempty"`
}

// Several returns the block or the domain that e, an end of r, stands for with its first
// recorded address. It is empty if r is about this address only.
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
	// Disputed is set if the packet was decided as for each of several that may have an address.
	Disputed bool `json:"disputed,omitempty"`
}

// Policy is the policy that decided.
type Policy struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// maxLine is the longest line that Decode reads, in bytes.
const maxLine = 64 << 10

// Decode calls yield with each record of r, one per line, and skips records of unknown types.
// The error is that of r or yield, or names the line that is not a record.
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

// sanitize makes all text of r printable: agents of earlier versions do not, and an agent may be
// compromised.
func (r *Record) sanitize() {
	texts := []*string{&r.Node, &r.Protocol, &r.Why}
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
	if r.State != nil {
		texts = append(texts, &r.Version, &r.NotReady)
		if r.InForce != nil {
			r.InForce.MakePrintable()
		}
	}
	for _, text := range texts {
		*text = printable.Text(*text)
	}
}

// check reports whether the type of r is known, and returns an error for missing or wrong
// fields.
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
		need("source", r.Source.hasAddress())
		need("destination", r.Destination.hasAddress())
		need("protocol", r.Protocol != "")
	}
	return true, errors.Join(append(missing, r.checkVerdicts()...)...)
}

func (e *End) hasAddress() bool { return e != nil && e.Address.IsValid() }

func (r *Record) checkVerdicts() (errs []error) {
	if r.Type == TypeAgent {
		return nil
	}
	for _, d := range []*Decision{&r.Decision, r.Audit} {
		if d != nil && d.Verdict != Allow && d.Verdict != Deny {
			errs = append(errs, fmt.Errorf("%s: verdict %q: must be %s or %s", r.Type, d.Verdict, Allow, Deny))
		}
	}
	return errs
}
