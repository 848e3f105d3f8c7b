package suite

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/junit"
)

// report is written to files once all scenarios have been played.
type report struct {
	backend     string
	provider    string
	support     netpol.Support
	environment netpol.Environment
	ended       time.Time
	// scenarios and results have the same order. Scenarios that were not reached have no
	// result.
	scenarios []netpol.Scenario
	results   []netpol.Result
	summary   netpol.Summary
	latency   *netpol.Latency // nil if it was not measured
}

// write writes the files that o names.
func (r *report) write(o options) error {
	contents := map[string]func() ([]byte, error){
		o.junit: func() ([]byte, error) {
			var out bytes.Buffer
			err := junit.Write(&out, r.junit())
			return out.Bytes(), err
		},
		o.report: func() ([]byte, error) { return []byte(r.markdown()), nil },
		o.results: func() ([]byte, error) {
			text, err := json.MarshalIndent(r.record(), "", "  ")
			return append(text, '\n'), err
		},
	}
	for file, content := range contents {
		if file == "" {
			continue
		}
		text, err := content()
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Record is the format of -results. Times are in milliseconds.
type Record struct {
	Provider    string              `json:"provider"`
	Backend     string              `json:"backend"`
	Environment netpol.Environment  `json:"environment"`
	Date        string              `json:"date"` // of the end of the run
	Scenarios   int                 `json:"scenarios"`
	Played      int                 `json:"played"` // the others are not supported
	Failed      []string            `json:"failed"`
	WrongCells  map[string]int      `json:"wrongCells"`  // by scenario; none where a failure has another reason
	Unsupported map[string][]string `json:"unsupported"` // what is missing, by scenario
	Cells       int                 `json:"cells"`
	LeftOut     int                 `json:"cellsLeftOut"`
	Control     *Control            `json:"control,omitempty"`
	NoTimes     string              `json:"noTimes,omitempty"` // why there are none
	Convergence []Convergence       `json:"convergence"`
	Revocation  []Revocation        `json:"revocation"`
	Latency     *Latency            `json:"latency,omitempty"`
}

// Control is a netpol.Control.
type Control struct {
	Checks int `json:"checks"`
	Times
}

// Convergence is a netpol.Convergence.
type Convergence struct {
	Change  netpol.Change `json:"change"`
	Changes int           `json:"changes"`
	Times
}

// Revocation is a netpol.Revocation.
type Revocation struct {
	Change  netpol.Change `json:"change"`
	Changes int           `json:"changes"`
	Cut     int           `json:"cut"`
	Kept    int           `json:"kept"`
	*Times                // nil if none ended or the machine is busy
}

// Latency is a netpol.Latency.
type Latency struct {
	Connections int   `json:"connections"`
	Free        Times `json:"free"`
	Selected    Times `json:"selected"`
}

// Times are netpol.Times. Those below ten milliseconds have a decimal.
type Times struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func timesOf(t netpol.Times) Times {
	return Times{milliseconds(t.P50), milliseconds(t.P95), milliseconds(t.P99), milliseconds(t.Max)}
}

func milliseconds(d time.Duration) float64 {
	if d < 10*time.Millisecond {
		return float64(d.Round(100*time.Microsecond).Microseconds()) / 1000
	}
	return float64(d.Milliseconds())
}

func (r *report) record() Record {
	s := &r.summary
	record := Record{Provider: r.provider, Backend: r.backend, Environment: r.environment, Date: r.ended.UTC().Format(time.DateOnly),
		Scenarios: s.Scenarios + s.Unsupported, Failed: []string{}, WrongCells: map[string]int{}, Unsupported: map[string][]string{}, Cells: s.Cells, LeftOut: s.LeftOut}
	for _, result := range r.results {
		if len(result.Steps) > 0 || result.Err != nil {
			record.Played++
		}
		if !result.OK() {
			record.Failed = append(record.Failed, result.Scenario)
		}
		if wrong := result.WrongCells(); wrong > 0 {
			record.WrongCells[result.Scenario] = wrong
		}
		if len(result.Unsupported) > 0 {
			record.Unsupported[result.Scenario] = result.Unsupported
		}
	}
	if control := s.Control(); control.Checks > 0 {
		record.Control, record.NoTimes = &Control{control.Checks, timesOf(control.Times)}, control.Busy()
	}
	for _, c := range s.Convergence() {
		record.Convergence = append(record.Convergence, Convergence{c.Change, c.Changes, timesOf(c.Times)})
	}
	for _, c := range s.Revocation() {
		revocation := Revocation{c.Change, c.Changes, c.Cut, c.Kept, nil}
		if c.Cut > 0 && record.NoTimes == "" {
			revocation.Times = new(timesOf(c.Times))
		}
		record.Revocation = append(record.Revocation, revocation)
	}
	if l := r.latency; l != nil {
		record.Latency = &Latency{l.Connections, timesOf(l.Free), timesOf(l.Selected)}
	}
	return record
}

// control returns the control, with a dash in place of times and the reason if there are none, and ""
// if changes are effective at once.
func (r *report) control() string {
	control := r.summary.Control()
	if control.Checks == 0 {
		return ""
	}
	if busy := control.Busy(); busy != "" {
		return fmt.Sprintf("%s\ntimes of changes: – (%s)", control, busy)
	}
	return control.String()
}

func (r *report) junit() junit.Suite {
	s := junit.Suite{Name: "netpol " + r.backend}
	if control := r.control(); control != "" {
		s.Properties = append(s.Properties, junit.Property{Name: "control", Value: control})
	}
	for _, c := range r.summary.Convergence() {
		s.Properties = append(s.Properties, junit.Property{Name: "convergence " + string(c.Change), Value: c.String()})
	}
	for _, c := range r.summary.Revocation() {
		s.Properties = append(s.Properties, junit.Property{Name: "revocation " + string(c.Change), Value: c.String()})
	}
	if r.latency != nil {
		s.Properties = append(s.Properties, junit.Property{Name: "latency", Value: r.latency.String()})
	}
	for i, scenario := range r.scenarios {
		c := junit.Case{Class: "netpol", Name: scenario.Name}
		if i >= len(r.results) {
			c.Error = "not played: the run was interrupted"
			s.Cases = append(s.Cases, c)
			continue
		}
		result := r.results[i]
		c.Took = result.Took
		switch {
		case result.Wrong():
			c.Failure = result.Report(netpol.Unicode, false)
		case !result.OK():
			c.Error = result.Report(netpol.Unicode, false)
		case len(result.Steps) == 0:
			c.Skipped = "not supported by this backend: " + strings.Join(result.Unsupported, ", ")
		}
		s.Cases = append(s.Cases, c)
	}
	return s
}

// markdown describes what the provider does: how many scenarios passed, the tables of those
// that did not, and what could not be observed.
func (r *report) markdown() string {
	var out strings.Builder
	fmt.Fprintf(&out, "# Network policy scenarios on %s\n\n%s.\n\n", r.backend, &r.summary)
	fmt.Fprintf(&out, "Supported: %s; %s; %s.\n", joined(r.support.Protocols), joined(r.support.Families), count(r.support.Nodes, "node"))
	if len(r.support.Features) > 0 {
		fmt.Fprintf(&out, "Features: %s.\n", joined(r.support.Features))
	}
	if control := r.control(); control != "" {
		fmt.Fprintf(&out, "\n%s.\n", control)
	}
	for i, c := range r.summary.Convergence() {
		if i == 0 {
			out.WriteString("\nUntil every table was as expected after a change:\n\n")
		}
		fmt.Fprintf(&out, "- %s\n", c)
	}
	for i, c := range r.summary.Revocation() {
		if i == 0 {
			out.WriteString("\nEstablished connections after a change that denies them:\n\n")
		}
		fmt.Fprintf(&out, "- %s\n", c)
	}
	if r.latency != nil {
		fmt.Fprintf(&out, "\nLatency: %s.\n", r.latency)
	}
	out.WriteString("\n| scenario | statements | steps | cells | left out | established | result |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for i, scenario := range r.scenarios {
		result := netpol.Result{}
		if i < len(r.results) {
			result = r.results[i]
		}
		fmt.Fprintf(&out, "| %s | %s | %d | %d | %d | %s | %s |\n", cell(scenario.Name), strings.Join(scenario.Statements, ", "),
			len(result.Steps), result.Cells(), result.LeftOut, established(result), r.outcome(i))
	}
	for _, result := range r.results {
		if !result.OK() {
			fmt.Fprintf(&out, "\n## %s\n\n```\n%s```\n", result.Scenario, result.Report(netpol.Unicode, false))
		}
	}
	return out.String()
}

// established counts the connections that the steps of a scenario deny and that were open before.
func established(r netpol.Result) string {
	cut, kept := 0, 0
	for _, step := range r.Steps {
		cut += step.Established.Cut
		kept += len(step.Established.Kept)
	}
	switch {
	case cut+kept == 0:
		return ""
	case kept == 0:
		return fmt.Sprintf("cut: %d", cut)
	case cut == 0:
		return fmt.Sprintf("kept: %d", kept)
	}
	return fmt.Sprintf("cut: %d, kept: %d", cut, kept)
}

// outcome summarises the result of a scenario.
func (r *report) outcome(i int) string {
	if i >= len(r.results) {
		return "not played"
	}
	switch result := r.results[i]; {
	case result.Wrong():
		return "**failed**"
	case !result.OK():
		return "**no result**"
	case len(result.Steps) == 0:
		return "not supported: " + cell(strings.Join(result.Unsupported, ", "))
	case len(result.Unsupported) > 0:
		return "passed, without " + cell(strings.Join(result.Unsupported, ", "))
	}
	return "passed"
}

// cell escapes text for a cell of a Markdown table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func joined[S ~string](all []S) string {
	var texts []string
	for _, s := range all {
		texts = append(texts, string(s))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}
