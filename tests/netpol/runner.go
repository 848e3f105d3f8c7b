package netpol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Runner plays scenarios on a backend.
type Runner struct {
	Backend Backend
	// Settle limits how long a change may take to be effective everywhere. Zero means 10 s.
	Settle time.Duration
	// Silence is how long to wait for an answer where none is expected; zero means 200 ms.
	// Expected answers may take up to five times as long.
	Silence time.Duration
}

// Defaults of Runner.
const (
	defaultSettle  = 10 * time.Second
	defaultSilence = 200 * time.Millisecond
)

// patience is the timeout of an expected answer as a multiple of Silence, because a busy
// machine answers late.
const patience = 5

// Result is the result of a scenario.
type Result struct {
	Scenario string
	Steps    []StepResult
	// Unsupported names what the backend lacks. Tables that need it are not observed. If there
	// are no Steps either, the scenario was not played at all.
	Unsupported []string
	// LeftOut counts the cells that are not observed for that reason.
	LeftOut int
	// Err is why the scenario could not be played to its end.
	Err  error
	Took time.Duration
}

// StepResult is what was observed after a step.
type StepResult struct {
	Name        string
	Comparisons []Comparison
	// Change is what the step changed, "" if nothing or if changes are effective at once.
	Change Change
	// Settled is how long the change took until every table was right; see Convergence. It is
	// meaningless if a table differs.
	Settled time.Duration
	// State is what the tables are of.
	State *State
	// Established is about connections that were open before the step, which denies them. It is
	// empty if the backend is no Holder.
	Established Established
}

// Comparison is one table, expected and observed.
type Comparison struct {
	Traffic   Traffic
	Want, Got *TruthTable
}

// errNotObservable means that pods do not connect even without policies.
var errNotObservable = errors.New("policies cannot be observed: without any of them not everything connects")

// Play plays one scenario. It ends at the first step with an unexpected outcome. If not
// everything connects without policies, it ends before the first one.
func (r Runner) Play(ctx context.Context, scenario Scenario) Result {
	started := time.Now()
	p := &play{runner: r, scenario: scenario, state: scenario.Model.State(), result: Result{Scenario: scenario.Name}}
	if p.findTraffic() {
		p.result.Err = p.run(ctx)
	}
	p.result.Took = time.Since(started)
	return p.result
}

// play is the state of one Play.
type play struct {
	runner   Runner
	scenario Scenario
	traffic  []Traffic
	state    *State
	want     *Reachability // after the last step
	result   Result
}

// findTraffic determines what can be observed, and reports whether that is anything.
func (p *play) findTraffic() bool {
	support := p.runner.Backend.Supports()
	cells := len(p.state.Endpoints()) * len(p.state.Endpoints()) * len(p.scenario.Steps)
	all := p.scenario.Model.Traffic()
	p.result.Unsupported = support.lacks(p.scenario)
	if len(p.result.Unsupported) > 0 {
		p.result.LeftOut = cells * len(all)
		return false
	}
	for _, t := range all {
		missing := support.missing(t)
		if missing == "" {
			p.traffic = append(p.traffic, t)
			continue
		}
		p.result.LeftOut += cells
		if !slices.Contains(p.result.Unsupported, missing) {
			p.result.Unsupported = append(p.result.Unsupported, missing)
		}
	}
	return len(p.traffic) > 0
}

func (p *play) run(ctx context.Context) error {
	if err := p.baseline(ctx); err != nil {
		return err
	}
	for i, step := range p.scenario.Steps {
		err := p.step(ctx, step)
		if p.scenario.Refusable && errors.Is(err, ErrRefused) {
			p.leaveOut(p.scenario.Steps[i:], err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, step.Name, err)
		}
		if p.result.Differs() {
			return nil
		}
	}
	return nil
}

// leaveOut notes why steps are not played, the first of which has changed the state.
func (p *play) leaveOut(steps []Step, why error) {
	p.result.Unsupported = append(p.result.Unsupported, why.Error())
	p.result.LeftOut += len(steps) * len(p.state.Endpoints()) * len(p.state.Endpoints()) * len(p.traffic)
}

// baseline starts the cluster and checks that everything connects.
func (p *play) baseline(ctx context.Context) error {
	if err := p.runner.Backend.Apply(ctx, p.state); err != nil {
		return fmt.Errorf("apply the model: %w", err)
	}
	p.want = NewReachability(p.state, p.traffic)
	seen, err := p.observe(ctx, p.want)
	if err != nil {
		return err
	}
	var differences strings.Builder
	for _, group := range alike(seen.comparisons) {
		if diff := group[0].Want.Diff(group[0].Got); diff != "" {
			fmt.Fprintf(&differences, "\n%s\n%s", list(group), diff)
		}
	}
	if differences.Len() > 0 {
		return fmt.Errorf("%w:%s", errNotObservable, &differences)
	}
	return nil
}

// step applies a change and observes what becomes of it.
func (p *play) step(ctx context.Context, step Step) error {
	before := p.state
	p.state = p.state.Clone()
	if step.Change != nil {
		step.Change(p.state)
	}
	for _, kind := range p.state.kinds() {
		if !slices.Contains(p.scenario.Needs, kind) {
			return fmt.Errorf("the scenario applies %s, which is not among its Needs", kind)
		}
	}
	result := StepResult{Name: step.Name}
	if !p.runner.Backend.Supports().Immediate {
		result.Change = changeBetween(before, p.state)
	}
	held, err := p.hold(ctx, before, step)
	if err != nil {
		return err
	}
	defer held.close()
	if err := p.runner.Backend.Apply(ctx, p.state); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	applied := time.Now()
	p.want = step.reachability(p.state, p.scenario.Model.Traffic(), p.traffic)
	seen, err := p.settle(ctx, p.want)
	result.Settled, result.Comparisons, result.State = seen.settled.Sub(applied), seen.comparisons, p.state
	right := err == nil && !anyDiffers(seen.comparisons)
	if right && held != nil {
		result.Established, err = p.awaitEnds(ctx, held, applied)
	}
	if right && err == nil && step.Churn != nil {
		result.Comparisons, err = p.churn(ctx, step, p.want)
	}
	p.result.Steps = append(p.result.Steps, result)
	return err
}

// settle observes until everything is as expected, and then looks once more: a cell that was
// right before the change took effect may be wrong now.
func (p *play) settle(ctx context.Context, want *Reachability) (observation, error) {
	first, err := p.observe(ctx, want)
	if err != nil || anyDiffers(first.comparisons) || p.runner.Backend.Supports().Immediate {
		return first, err
	}
	second, err := p.observe(ctx, want)
	if second.rounds == 1 {
		second.settled = first.settled
	}
	return second, err
}

// churn changes the state while it observes.
func (p *play) churn(ctx context.Context, step Step, want *Reachability) ([]Comparison, error) {
	for round := range churnRounds {
		p.state = p.state.Clone()
		step.Churn(p.state, round+1)
		applied := make(chan error, 1)
		go func(state *State) { applied <- p.runner.Backend.Apply(ctx, state) }(p.state)
		comparisons, err := p.look(ctx, want)
		if applyErr := <-applied; applyErr != nil {
			return nil, fmt.Errorf("apply round %d of the churn: %w", round+1, applyErr)
		}
		if err != nil || anyDiffers(comparisons) || round == churnRounds-1 {
			return comparisons, err
		}
	}
	return nil, nil
}

// Differs reports whether any outcome is unexpected.
func (r Result) Differs() bool {
	return slices.ContainsFunc(r.Steps, func(s StepResult) bool { return anyDiffers(s.Comparisons) || s.Established.Differs() })
}

// OK reports whether everything that the backend can show is as expected.
func (r Result) OK() bool { return r.Err == nil && !r.Differs() }

// Cells returns the number of compared cells.
func (r Result) Cells() int {
	cells := 0
	for _, step := range r.Steps {
		for _, c := range step.Comparisons {
			cells += len(c.Want.pods) * len(c.Want.pods)
		}
	}
	return cells
}

// WrongCells returns the number of cells whose outcome was observed and is not the expected one.
func (r Result) WrongCells() int {
	cells := 0
	for _, step := range r.Steps {
		for _, c := range step.Comparisons {
			for _, pair := range c.Want.Compare(c.Got) {
				if c.Got.Outcome(pair.From, pair.To) != Unobservable {
					cells++
				}
			}
		}
	}
	return cells
}

// Wrong reports whether the provider did something else than expected. A result that is neither Wrong
// nor OK says nothing about the provider: an error of the cluster ended the scenario, or attempts
// could not be made.
func (r Result) Wrong() bool {
	return r.WrongCells() > 0 || slices.ContainsFunc(r.Steps, func(s StepResult) bool { return s.Established.Differs() })
}

func anyDiffers(comparisons []Comparison) bool {
	return slices.ContainsFunc(comparisons, func(c Comparison) bool { return len(c.Want.Compare(c.Got)) > 0 })
}

// Report returns the tables that differ, or all tables if all is set, and why the scenario
// was not played to its end.
func (r Result) Report(symbols Symbols, all bool) string {
	var out strings.Builder
	for i, step := range r.Steps {
		for _, group := range alike(step.Comparisons) {
			c := group[0]
			diff := c.Want.Diff(c.Got)
			if diff == "" && all {
				diff = Show(symbols, Grid{Title: "as expected", Want: c.Want})
			}
			if diff != "" {
				fmt.Fprintf(&out, "%s, step %d %s: %s\n%s", r.Scenario, i+1, step.Name, list(group), diff)
			}
		}
		if step.Established.Differs() {
			fmt.Fprintf(&out, "%s, step %d %s: %s\n", r.Scenario, i+1, step.Name, step.Established)
		}
	}
	if wrong, got, state := r.FirstWrong(); state != nil {
		fmt.Fprintf(&out, "The first wrong cell is %s: %s, with these policies:\n%s", wrong, got, Manifest(state.AllPolicies()...))
	}
	if r.Err != nil {
		fmt.Fprintf(&out, "%s: %v\n", r.Scenario, r.Err)
	}
	return out.String()
}

// FirstWrong returns the first cell that is not as expected and what was observed of it in which state,
// nil if there is none.
func (r Result) FirstWrong() (Connection, Outcome, *State) {
	for _, step := range r.Steps {
		for _, c := range step.Comparisons {
			for _, pair := range c.Want.Compare(c.Got) {
				return Connection{From: pair.From, To: pair.To, Traffic: c.Traffic}, c.Got.Outcome(pair.From, pair.To), step.State
			}
		}
	}
	return Connection{}, Unobservable, nil
}

// alike groups comparisons whose tables are the same.
func alike(comparisons []Comparison) [][]Comparison {
	var groups [][]Comparison
	for _, c := range comparisons {
		i := slices.IndexFunc(groups, func(g []Comparison) bool {
			return len(c.Want.Compare(g[0].Want)) == 0 && len(c.Got.Compare(g[0].Got)) == 0
		})
		if i < 0 {
			groups = append(groups, []Comparison{c})
			continue
		}
		groups[i] = append(groups[i], c)
	}
	return groups
}

// list names the traffic of comparisons.
func list(comparisons []Comparison) string {
	var names []string
	for _, c := range comparisons {
		names = append(names, c.Traffic.String())
	}
	return strings.Join(names, ", ")
}
