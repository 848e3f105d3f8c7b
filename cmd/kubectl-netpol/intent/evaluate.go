package intent

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
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

// Services knows what stands behind Services.
type Services interface {
	// Behind returns what stands behind a port of a Service or a node, and the port there. name is an
	// address, or "namespace/svc/name". of says what has the port, "service shop/web", and is empty if
	// packets are not translated.
	Behind(name string, port reachability.Port) (endpoints []reachability.Endpoint, at reachability.Port, of string, err error)
	// Client returns the endpoint with an address from which packets come. For a cluster IP, that is
	// what stands behind it, and of says whose it is.
	Client(address string) (endpoints []reachability.Endpoint, of string, err error)
	// Outside returns addresses that stand for all that are neither pods' nor nodes' nor Services'.
	Outside() []reachability.Endpoint
	// Named returns what stands behind all ports of a Service.
	Named(namespace, name string) ([]reachability.Endpoint, error)
}

// Evaluate evaluates expectations on the cluster c, which was made from in. An expectation
// with an empty side, or without a possible connection between its sides, is an error with
// its file, line and field: it would always hold. All errors are joined. services
// may be nil: then there are none.
func Evaluate(in clusterstate.Input, c *reachability.Cluster, expectations []Expectation, services Services) ([]Result, error) {
	known := newCluster(in, c)
	known.services = services
	var results []Result
	var errs []error
	for i := range expectations {
		e := &expectations[i]
		e, from, fromErr := known.client(e)
		if fromErr != nil {
			errs = append(errs, e.From.fault(e.File, fromErr))
		}
		e, to, toErr := known.server(e)
		if toErr != nil {
			errs = append(errs, e.To.fault(e.File, toErr))
		}
		if fromErr != nil || toErr != nil {
			continue
		}
		r := Result{Expectation: e, LeftOut: append(from.leftOut, to.leftOut...)}
		if !known.evaluate(&r, from.endpoints, to.endpoints) {
			errs = append(errs, fmt.Errorf("%s: %s: %w", place(e.File, e.Line), e.Field, known.impossible(e, from.endpoints, to.endpoints)))
			continue
		}
		results = append(results, r)
	}
	return results, errors.Join(errs...)
}

// client returns the endpoints of the source. For a cluster IP, these are what stands behind it, and
// the expectation becomes one about them.
func (c *cluster) client(e *Expectation) (*Expectation, members, error) {
	if !e.From.name.address.IsValid() || c.services == nil {
		from, err := c.members(&e.From)
		return e, from, err
	}
	endpoints, of, err := c.services.Client(e.From.name.text)
	if of != "" {
		behind := *e
		behind.From.name.text = fmt.Sprintf("%s (%s)", e.From.name.text, of)
		e = &behind
	}
	return e, members{endpoints: endpoints}, err
}

// server returns the endpoints of the destination. For a port of a Service, these are what
// stands behind it, and the expectation becomes one about them.
func (c *cluster) server(e *Expectation) (*Expectation, members, error) {
	if !e.To.name.address.IsValid() && e.To.name.workload.Kind != workloads.Service || c.services == nil {
		to, err := c.members(&e.To)
		return e, to, err
	}
	endpoints, at, of, err := c.services.Behind(e.To.name.text, e.Port)
	if err != nil || of == "" {
		to, otherErr := c.members(&e.To)
		return e, to, errors.Join(err, otherErr)
	}
	behind := *e
	behind.To.name.text = fmt.Sprintf("%s (%s, port %v)", e.To.name.text, of, e.Port)
	if !e.To.name.address.IsValid() {
		behind.To.name.text = fmt.Sprintf("%s (port %v)", e.To.name.text, e.Port)
	}
	behind.Port = at
	return &behind, members{endpoints: endpoints}, nil
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
func (c *cluster) evaluate(r *Result, from, to []reachability.Endpoint) (possible bool) {
	failed := map[connection]bool{} // also of connections that are as expected
	add := func(src, dst *reachability.Endpoint, f reachability.Family, allowed bool) {
		key := connection{src.Name, dst.Name, f}
		if _, known := failed[key]; !known { // else it is the same one, with an end at another place
			r.Connections++
		}
		if !failed[key] && allowed != r.Allow {
			c.fail(r, src, dst, f)
		}
		failed[key] = failed[key] || allowed != r.Allow
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
				if _, ok := reachability.Connectable(src, dst, r.Port, f); ok {
					connects, possible = true, true
					add(src, dst, f, matrices[i].Allowed(row, column))
				}
			}
			if !connects && r.Allow && !r.From.name.outside && !r.To.name.outside {
				add(src, dst, reachability.FirstCommon, false)
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
