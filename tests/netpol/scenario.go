package netpol

// Scenario is a series of changes to a cluster and what must be seen after each.
type Scenario struct {
	// Name says the behaviour in a few words.
	Name string
	// Statements are the numbers of the statements of docs/semantics.md that it is
	// about, "NP-12".
	Statements []string
	// Model is the cluster at the start. It is applied, and everything must connect,
	// before the first step.
	Model Model
	// Needs is what the backend must have, besides what the model tells.
	Needs []Feature
	Steps []Step
}

// Step is one change and the truth afterwards.
type Step struct {
	// Name is what the change does. It may be empty in a scenario of one step.
	Name string
	// Change changes the state; all of it is applied at once. Nil changes nothing.
	Change func(*State)
	// Want says what must be seen. Nil is that everything connects.
	Want func(*Reachability)
	// Churn, if there is one, changes the state further while connections are tried.
	// It is called with 1, 2 and so on for each round. What Want says must hold at
	// every moment: nothing is tried again.
	Churn func(state *State, round int)
}

// churnRounds is how often Step.Churn is called.
const churnRounds = 10

// needs returns what the backend must have. Services are not among it: their
// tables are left out where there are none.
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

// reachability returns what the step expects of state.
func (s Step) reachability(state *State, traffic []Traffic) *Reachability {
	r := NewReachability(state, traffic)
	if s.Want != nil {
		s.Want(r)
	}
	return r
}
