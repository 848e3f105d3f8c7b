package intent

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/kube-network-policies/pkg/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/reachability"
)

// Result is whether an expectation holds.
type Result struct {
	*Expectation
	// Connections is how many were evaluated, and Pairs are these if they were to be kept.
	// Family is empty for a pair that cannot connect at all.
	Connections int
	Pairs       []Pair
	// Failed is how many of them are not as expected. Failures explain the first few.
	Failed   int
	Failures []Failure
	// LeftOut is why pods of the sides could not be evaluated.
	LeftOut []error
	// Probed is what real connections have shown, if they were made.
	Probed *Probed
}

// Probed is what the real connections of an expectation have shown.
type Probed struct {
	Connections int      `json:"connections"`        // that were tried
	Failures    []string `json:"failures,omitempty"` // those that are not as expected
	Skipped     []string `json:"skipped,omitempty"`  // why others could not be tried
}

// Holds reports whether all connections are as expected, also the real ones.
func (r *Result) Holds() bool {
	return r.Failed == 0 && (r.Probed == nil || len(r.Probed.Failures) == 0)
}

// Pair is a connection of one family. Allowed is what policies do with it.
type Pair struct {
	From, To *reachability.Endpoint
	Port     uint16 // the number on To, 0 with ICMP
	Family   reachability.Family
	Allowed  bool
}

// Failure is a connection that is not as expected.
type Failure struct {
	From    string              `json:"from"`
	To      string              `json:"to"`
	Family  reachability.Family `json:"family,omitempty"`
	Allowed bool                `json:"allowed"`
	Reason  string              `json:"reason"` // the policies and rules that decide
}

// most is how many failures of an expectation are explained.
const most = 10

// Evaluate evaluates expectations on a cluster, which c has been made of. An expectation
// whose sides have no endpoint, or between which no connection is possible, is an
// error with its file, line and field. All errors are joined. keepPairs is whether results
// have Pairs, which take memory for each connection.
func Evaluate(in clusterstate.Input, c *reachability.Cluster, expectations []Expectation, keepPairs bool) ([]Result, error) {
	known := newCluster(in, c)
	var results []Result
	var errs []error
	for i := range expectations {
		e := &expectations[i]
		from, fromErr := known.members(&e.From)
		if fromErr != nil {
			errs = append(errs, e.From.fault(e.File, fromErr))
		}
		to, toErr := known.members(&e.To)
		if toErr != nil {
			errs = append(errs, e.To.fault(e.File, toErr))
		}
		if fromErr != nil || toErr != nil {
			continue
		}
		r := Result{Expectation: e, LeftOut: append(from.leftOut, to.leftOut...)}
		if !known.evaluate(&r, from.endpoints, to.endpoints, keepPairs) {
			errs = append(errs, fmt.Errorf("%s: %s: %w", place(e.File, e.Line), e.Field, known.impossible(e, from.endpoints, to.endpoints)))
			continue
		}
		results = append(results, r)
	}
	return results, errors.Join(errs...)
}

// fault is an error about a side.
func (e *Endpoints) fault(file string, err error) error {
	return fmt.Errorf("%s: %s: %w", place(file, e.line), e.field, err)
}

// evaluate evaluates every pair of different endpoints, in each family that both have,
// and reports whether any connection was possible. A pair without one is as expected if
// it must be denied.
func (c *cluster) evaluate(r *Result, from, to []reachability.Endpoint, keepPairs bool) (possible bool) {
	add := func(p Pair) {
		r.Connections++
		if keepPairs {
			r.Pairs = append(r.Pairs, p)
		}
		if p.Allowed != r.Allow {
			c.fail(r, p)
		}
	}
	families := []reachability.Family{reachability.IPv4, reachability.IPv6}
	matrices := make([]*reachability.Matrix, len(families))
	for i, f := range families {
		matrices[i] = c.Matrix(from, to, r.Port, f)
	}
	for row := range from {
		for column := range to {
			src, dst := &from[row], &to[column]
			if src.Name == dst.Name {
				continue // a pod always reaches itself
			}
			connects := false
			for i, f := range families {
				if number, ok := reachability.Connectable(src, dst, r.Port, f); ok {
					connects, possible = true, true
					add(Pair{From: src, To: dst, Port: number, Family: f, Allowed: matrices[i].Allowed(row, column)})
				}
			}
			if !connects && r.Allow {
				add(Pair{From: src, To: dst})
			}
		}
	}
	return possible
}

// fail counts a pair that is not as expected, and explains the first few of them.
func (c *cluster) fail(r *Result, p Pair) {
	r.Failed++
	if len(r.Failures) < most {
		e := c.Explain(p.From, p.To, r.Port, p.Family)
		r.Failures = append(r.Failures, Failure{From: e.From, To: e.To, Family: p.Family, Allowed: e.Allowed, Reason: reason(&e)})
	}
}

// impossible is why no connection between the sides is possible.
func (c *cluster) impossible(e *Expectation, from, to []reachability.Endpoint) error {
	for i := range from {
		for j := range to {
			if from[i].Name != to[j].Name {
				return errors.New(c.Explain(&from[i], &to[j], e.Port, reachability.FirstCommon).Reason)
			}
		}
	}
	return fmt.Errorf("both sides are %s, which always reaches itself", from[0].Name)
}

// reason names what decides about a connection: the directions that deny it, or both.
func reason(e *reachability.Explanation) string {
	var parts []string
	for i := range e.Directions {
		d := &e.Directions[i]
		if d.Allowed != e.Allowed {
			continue
		}
		part := fmt.Sprintf("%s of %s: %s", d.Direction, d.Subject, d.Reason)
		if !d.Allowed && len(d.Policies) > 0 && !strings.Contains(d.Reason, " spec.") {
			part += ": " + strings.Join(d.Policies, ", ")
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return e.Reason
	}
	return strings.Join(parts, "; ")
}
