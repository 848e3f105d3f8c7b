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
	// Settle is how long a change may take to be effective everywhere, 10 s if zero.
	Settle time.Duration
	// Silence is how long to wait for an answer where none is expected, 200 ms if zero.
	// Where one is expected the time is up to five times as long.
	Silence time.Duration
}

// Defaults of Runner.
const (
	defaultSettle  = 10 * time.Second
	defaultSilence = 200 * time.Millisecond
)

// patience is how many times Silence to wait for an expected answer: a busy machine
// answers late.
const patience = 5

// Result is the result of a scenario.
type Result struct {
	Scenario string
	Steps    []StepResult
	// Unsupported names what the backend lacks; the tables that need it are not
	// observed. If Steps is empty, too, the scenario was not played at all.
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
}

// Comparison is one table as expected and as observed.
type Comparison struct {
	Traffic   Traffic
	Want, Got *TruthTable
}

// errNotObservable means that pods do not connect even without policies.
var errNotObservable = errors.New("policies cannot be observed: without any of them not everything connects")

// Play plays one scenario. It ends at the first step that is not as expected. It ends
// before the first policy if not everything connects then.
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
	result   Result
}

// findTraffic finds what can be observed, and reports whether that is anything.
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
		if err := p.step(ctx, step); err != nil {
			return fmt.Errorf("step %d, %s: %w", i+1, step.Name, err)
		}
		if p.result.Differs() {
			return nil
		}
	}
	return nil
}

// baseline brings the cluster up and checks that everything connects.
func (p *play) baseline(ctx context.Context) error {
	if err := p.runner.Backend.Apply(ctx, p.state); err != nil {
		return fmt.Errorf("apply the model: %w", err)
	}
	comparisons, err := p.observe(ctx, NewReachability(p.state, p.traffic))
	if err != nil {
		return err
	}
	for _, c := range comparisons {
		if diff := c.Want.Diff(c.Got); diff != "" {
			return fmt.Errorf("%w: %s\n%s", errNotObservable, c.Traffic, diff)
		}
	}
	return nil
}

// step applies a change and observes until all is as expected, and then once more: a
// cell that was right before the change took effect may be wrong since.
func (p *play) step(ctx context.Context, step Step) error {
	p.state = p.state.Clone()
	if step.Change != nil {
		step.Change(p.state)
	}
	for _, kind := range p.state.kinds() {
		if !slices.Contains(p.scenario.Needs, kind) {
			return fmt.Errorf("the scenario applies %s, which is not among its Needs", kind)
		}
	}
	if err := p.runner.Backend.Apply(ctx, p.state); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	want := step.reachability(p.state, p.scenario.Model.Traffic(), p.traffic)
	comparisons, err := p.observe(ctx, want)
	if err == nil && !anyDiffers(comparisons) && !p.runner.Backend.Supports().Immediate {
		comparisons, err = p.observe(ctx, want)
	}
	if err == nil && !anyDiffers(comparisons) && step.Churn != nil {
		comparisons, err = p.churn(ctx, step, want)
	}
	p.result.Steps = append(p.result.Steps, StepResult{Name: step.Name, Comparisons: comparisons})
	return err
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

// Differs reports whether anything is not as expected.
func (r Result) Differs() bool {
	return slices.ContainsFunc(r.Steps, func(s StepResult) bool { return anyDiffers(s.Comparisons) })
}

// OK reports whether everything is as expected, as far as the backend can show it.
func (r Result) OK() bool { return r.Err == nil && !r.Differs() }

// Cells returns how many cells were compared.
func (r Result) Cells() int {
	cells := 0
	for _, step := range r.Steps {
		for _, c := range step.Comparisons {
			cells += len(c.Want.pods) * len(c.Want.pods)
		}
	}
	return cells
}

func anyDiffers(comparisons []Comparison) bool {
	return slices.ContainsFunc(comparisons, func(c Comparison) bool { return len(c.Want.Compare(c.Got)) > 0 })
}

// Report returns the tables that differ, all tables if all is set, and why the scenario
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
	}
	if r.Err != nil {
		fmt.Fprintf(&out, "%s: %v\n", r.Scenario, r.Err)
	}
	return out.String()
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
