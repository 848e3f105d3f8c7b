package intent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

// Result reports whether an expectation holds.
type Result struct {
	*Expectation
	// Connections counts the evaluated connections.
	Connections int
	// Failed counts the connections that are not as expected. Failures explain the first few.
	Failed   int
	Failures []Failure
	// LeftOut has the reason for each pod that could not be evaluated.
	LeftOut []error
}

// Holds reports whether all connections are as expected.
func (r *Result) Holds() bool { return r.Failed == 0 }

// Failure is a connection that is not as expected.
type Failure struct {
	From    string              `json:"from"`
	To      string              `json:"to"`
	Family  reachability.Family `json:"family,omitempty"`
	Allowed bool                `json:"allowed"`
	Reason  string              `json:"reason"` // the policies and rules that decided
	// Depends says which addresses that are not known decide it, if any do.
	Depends []string `json:"depends,omitempty"`
}

// maxFailures is how many failures of an expectation are explained.
const maxFailures = 10

// Names finds what names stand for: pods, workloads, Services, addresses, and outside.
type Names interface {
	// Client returns what sends packets under a name. For a cluster IP, that is what stands behind
	// it, and of says whose it is.
	Client(name string) (side reachability.Side, of string, err error)
	// Server returns what receives packets to a port of a name, and the port there. of says what has
	// the port, "service shop/web", and is empty if packets are not translated.
	Server(name string, port reachability.Port) (side reachability.Side, at reachability.Port, of string, err error)
}

// Evaluate evaluates expectations on the cluster c, which was made from in. An expectation
// with an empty side, or without a possible connection between its sides, is an error with
// its file, line and field: it would always hold. All errors are joined.
func Evaluate(in clusterstate.Input, c *reachability.Cluster, expectations []Expectation, names Names) ([]Result, error) {
	known := newCluster(in, c, names)
	var results []Result
	var errs []error
	for i := range expectations {
		e := expectations[i] // names of Services become those of what is behind them
		from, fromErr := known.client(&e)
		if fromErr != nil {
			errs = append(errs, e.From.fault(e.File, fromErr))
		}
		to, toErr := known.server(&e)
		if toErr != nil {
			errs = append(errs, e.To.fault(e.File, toErr))
		}
		if fromErr != nil || toErr != nil {
			continue
		}
		r := Result{Expectation: &e, LeftOut: append(from.LeftOut, to.LeftOut...)}
		if !known.evaluate(&r, &from, &to) {
			errs = append(errs, fmt.Errorf("%s: %s: %w", place(e.File, e.Line), e.Field, known.impossible(&e, from.Members, to.Members)))
			continue
		}
		results = append(results, r)
	}
	return results, errors.Join(errs...)
}

// client returns the source. If it is behind a cluster IP, the expectation says so.
func (c *cluster) client(e *Expectation) (reachability.Side, error) {
	if e.From.name == "" {
		return c.group(&e.From)
	}
	from, of, err := c.names.Client(e.From.name)
	if of != "" {
		e.From.name += " (" + of + ")"
	}
	return from, err
}

// server returns the destination. For a port of a Service, that is what stands behind it, and the
// expectation becomes one about its port there.
func (c *cluster) server(e *Expectation) (reachability.Side, error) {
	if e.To.name == "" {
		return c.group(&e.To)
	}
	to, at, of, err := c.names.Server(e.To.name, e.Port)
	switch _, notAddress := netip.ParseAddr(e.To.name); {
	case of == "":
	case notAddress != nil:
		e.To.name += fmt.Sprintf(" (port %v)", e.Port)
	default:
		e.To.name += fmt.Sprintf(" (%s, port %v)", of, e.Port)
	}
	e.Port = at
	return to, err
}

// fault locates an error about a side.
func (e *Endpoints) fault(file string, err error) error {
	return fmt.Errorf("%s: %s: %w", place(file, e.line), e.field, err)
}

// connection is a pair of endpoints wherever they are.
type connection struct {
	from, to string
	family   reachability.Family
}

// evaluate evaluates every pair of different endpoints, in each family that both have, and
// reports whether any connection was possible. A pair that cannot connect counts as denied.
func (c *cluster) evaluate(r *Result, src, dst *reachability.Side) (possible bool) {
	from, to := src.Members, dst.Members
	failed := map[connection]bool{} // also of connections that are as expected
	add := func(a, b *reachability.Endpoint, f reachability.Family, allowed bool) {
		key := connection{a.Name, b.Name, f}
		if _, known := failed[key]; !known { // else it is the same one, with an end at another place
			r.Connections++
		}
		if !failed[key] && allowed != r.Allow {
			c.fail(r, a, b, f)
		}
		failed[key] = failed[key] || allowed != r.Allow
	}
	outside := src.Outside || dst.Outside
	families := []reachability.Family{reachability.IPv4, reachability.IPv6}
	matrices := make([]*reachability.Matrix, len(families))
	for i, f := range families {
		matrices[i] = c.Matrix(from, to, r.Port, f)
	}
	for row := range from {
		for column := range to {
			a, b := &from[row], &to[column]
			if a.Name == b.Name {
				continue // a pod always reaches itself
			}
			connects := false
			for i, f := range families {
				if _, ok := reachability.Connectable(a, b, r.Port, f); ok {
					connects, possible = true, true
					add(a, b, f, matrices[i].Allowed(row, column))
				}
			}
			if !connects && r.Allow && !outside {
				add(a, b, reachability.FirstCommon, false)
			}
		}
	}
	return possible
}

// fail counts an unexpected connection and explains the first few.
func (c *cluster) fail(r *Result, src, dst *reachability.Endpoint, f reachability.Family) {
	r.Failed++
	if len(r.Failures) < maxFailures {
		e := c.Explain(src, dst, r.Port, f)
		r.Failures = append(r.Failures, Failure{
			From: e.From, To: e.To, Family: f, Allowed: e.Allowed, Reason: reason(&e), Depends: c.Depends(src, dst, r.Port, f),
		})
	}
}

// impossible says why no connection between the sides is possible.
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

// reason names the policies that decided: those of each direction that denied, or of both
// directions.
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
