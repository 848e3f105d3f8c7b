package netpol

// Scenario is a series of changes to a cluster and the tables that must hold after each.
type Scenario struct {
	// Name is the behaviour, in short.
	Name string
	// Statements identify what the scenario tests. Those of package scenarios are numbers of
	// docs/semantics.md of kube-network-policies, such as "NP-12".
	Statements []string
	// Model is the initial cluster. It is applied, and everything must connect, before the
	// first step.
	Model Model
	// Needs are features that the backend must support in addition to those that the model
	// needs.
	Needs []Feature
	// Refusable means that clusters may refuse the objects, as API servers do whose validation is
	// strict. Where they do, the scenario is not supported.
	Refusable bool
	Steps     []Step
}

// Step is one change and the tables that must hold afterwards.
type Step struct {
	// Name describes the change. It may be empty in a scenario with one step.
	Name string
	// Change changes the state, which is applied as a whole. Nil changes nothing.
	Change func(*State)
	// Want sets the expectations. If it is nil, everything must connect.
	Want func(*Reachability)
	// Churn, if not nil, changes the state while connections are tried. It is called with 1, 2
	// and so on for each round. The expectations must hold all the time, so no attempt is
	// repeated.
	Churn func(state *State, round int)
}

// churnRounds is how often Step.Churn is called.
const churnRounds = 10

// needs returns the features that the backend must support. Ways to reach a pod are not among them,
// because without them only their tables are left out.
func (s Scenario) needs() []Feature {
	needs := s.Needs
	model := s.Model.withDefaults()
	if model.HostNetwork {
		needs = append(needs, HostNetwork)
	}
	if len(model.Hosts) > 0 {
		needs = append(needs, OutsideHosts)
	}
	return needs
}

// reachability returns what the step expects of the observed traffic. Want may state more,
// because it is called with tables for all traffic of the model.
func (s Step) reachability(state *State, all, observed []Traffic) *Reachability {
	r := NewReachability(state, all)
	if s.Want != nil {
		s.Want(r)
	}
	r.traffic = observed
	return r
}
