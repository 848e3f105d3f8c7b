// Package results defines the format of all measurements: that of Go's benchmarks, with one
// line for each time that something was measured.
//
//	BenchmarkUDPFlows/agent/policies=11/queues=2 100000 71000 flows/s 0 lost
//
// The name is followed by the number of operations, and then by pairs of a value and its
// unit. Repeated measurements have several lines: the first lines of all names were
// measured in the first round, and so on. A line "key: value" describes the machine.
// benchstat reads the same format.
package results

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// prefix begins the line of a measurement.
const prefix = "Benchmark"

// Value is one of the values of a measurement.
type Value struct {
	Number float64
	Unit   string // without spaces
}

// Line is one measurement.
type Line struct {
	Name   string // without "Benchmark" and without spaces
	Count  int    // number of operations
	Values []Value
}

// String returns the line without a line feed.
func (l Line) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s%-44s %8d", prefix, l.Name, l.Count)
	for _, v := range l.Values {
		fmt.Fprintf(&s, "  %s %s", strconv.FormatFloat(v.Number, 'f', -1, 64), v.Unit)
	}
	return s.String()
}

// Value returns the value in unit, or 0 if there is none.
func (l Line) Value(unit string) float64 {
	for _, v := range l.Values {
		if v.Unit == unit {
			return v.Number
		}
	}
	return 0
}

// Fact is a line "key: value". Keys are lower case without spaces.
type Fact struct{ Key, Value string }

// String returns the line without a line feed.
func (f Fact) String() string { return f.Key + ": " + f.Value }

// Results are the measurements of one run.
type Results struct {
	// Facts describe the machine, in their order and without duplicates.
	Facts []Fact
	lines map[string][]Line // by name
}

// Read parses results. It skips lines in other formats, such as the "PASS" of benchmarks. A
// measurement that cannot be parsed is an error.
func Read(r io.Reader) (*Results, error) {
	out := &Results{lines: make(map[string][]Line)}
	scanner := bufio.NewScanner(r)
	for number := 1; scanner.Scan(); number++ {
		text := scanner.Text()
		if fact, ok := parseFact(text); ok {
			if !slices.Contains(out.Facts, fact) {
				out.Facts = append(out.Facts, fact)
			}
			continue
		}
		if len(strings.Fields(text)) < 2 || !strings.HasPrefix(text, prefix) {
			continue // a benchmark that runs longer prints its name first
		}
		line, err := parseLine(text)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		out.lines[line.Name] = append(out.lines[line.Name], line)
	}
	return out, scanner.Err()
}

var factForm = regexp.MustCompile(`^([a-z][a-z0-9-]*): +(.+)$`)

func parseFact(text string) (Fact, bool) {
	m := factForm.FindStringSubmatch(text)
	if m == nil {
		return Fact{}, false
	}
	return Fact{m[1], m[2]}, true
}

// processors is the suffix that Go's benchmarks add to a name.
var processors = regexp.MustCompile(`-\d+$`)

func parseLine(text string) (Line, error) {
	fields := strings.Fields(text)
	if len(fields)%2 != 0 {
		return Line{}, fmt.Errorf("%q is not a name, a count, and pairs of a value and its unit", text)
	}
	line := Line{Name: processors.ReplaceAllString(strings.TrimPrefix(fields[0], prefix), "")}
	var err error
	if line.Count, err = strconv.Atoi(fields[1]); err != nil {
		return Line{}, fmt.Errorf("%q: the count: %w", text, err)
	}
	for pair := range slices.Chunk(fields[2:], 2) {
		number, err := strconv.ParseFloat(pair[0], 64)
		if err != nil {
			return Line{}, fmt.Errorf("%q: the value before %s: %w", text, pair[1], err)
		}
		line.Values = append(line.Values, Value{number, pair[1]})
	}
	return line, nil
}

// Samples returns the measured values of name in unit in the order of the rounds. It is
// empty if nothing was measured.
func (r *Results) Samples(name, unit string) Samples {
	var samples Samples
	for _, line := range r.lines[name] {
		for _, v := range line.Values {
			if v.Unit == unit {
				samples = append(samples, v.Number)
			}
		}
	}
	return samples
}

// Samples are the values of one thing, one for each round.
type Samples []float64

// Median returns the middle value. Calling it without samples is a programmer error.
func (s Samples) Median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Spread returns the lowest and the highest value.
func (s Samples) Spread() (low, high float64) { return slices.Min(s), slices.Max(s) }

// Each returns f of both values of each round, for the rounds that both have.
func (s Samples) Each(other Samples, f func(a, b float64) float64) Samples {
	out := make(Samples, min(len(s), len(other)))
	for i := range out {
		out[i] = f(s[i], other[i])
	}
	return out
}

// Over returns the ratios of each round.
func (s Samples) Over(other Samples) Samples {
	return s.Each(other, func(a, b float64) float64 { return a / b })
}

// Minus returns the differences of each round.
func (s Samples) Minus(other Samples) Samples {
	return s.Each(other, func(a, b float64) float64 { return a - b })
}
