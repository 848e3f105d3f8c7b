package main

import (
	"fmt"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

// chart is one picture.
type chart struct {
	file, title, axis string
	kind, unit        string  // of measurements, for known and unknown classes
	scale             float64 // of values before they are drawn
	lines             []line
	levels            []level
}

var charts = []chart{
	{"latency.png", "A TCP connection, one at a time: median latency", "microseconds", "Connect", "p50-ns", 1e-3, connections, levels},
	{"rate.png", "New UDP flows that arrive, sent as fast as possible", "thousand flows per second", "Flood", "delivered/s", 1e-3, floods, floodLevels},
	{"cost.png", "CPU time for a TCP connection, 64 clients: both ends, kernel, agent", "microseconds", "Clients", "cpu-ns/connect", 1e-3, connections, levels},
}

// policies are those of the bench's plan.
var policies = []int{1, 11, 101, 1001, 10001}

// line is a way to decide with policies, and the classes of its connections. A line without
// measurements is not drawn, because not every agent remembers.
type line struct{ way, classes, legend string }

var (
	connections = []line{
		{"agent", "unknown", "agent, unknown classes"},
		{"agent", "known", "agent, known class"},
		{"asking", "known", "agent that remembers nothing"},
	}
	floods = []line{
		{"agent", "random", "agent, unknown classes"},
		{"asking", "random", "agent that remembers nothing"},
	}
)

// level is a way to decide without policies.
type level line

var (
	levels = []level{
		{"accept", "unknown", "accepted by a rule"},
		{"floor", "unknown", "minimal loop that accepts"},
		{"callback", "unknown", "callback loop that accepts"},
	}
	floodLevels = []level{
		{"accept", "random", "accepted by a rule"},
		{"floor", "random", "minimal loop that accepts"},
		{"callback", "random", "callback loop that accepts"},
	}
)

const (
	width  = 7 * vg.Inch
	height = 4 * vg.Inch
)

func init() { plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"} }

// draw draws medians as lines, and the lowest and highest values as bars.
func (c chart) draw(r *results.Results, path string) error {
	p := plot.New()
	p.Title.Text, p.Title.Padding = c.title, vg.Points(6)
	p.X.Label.Text, p.Y.Label.Text = "policies that select the pod", c.axis
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for i, l := range c.levels {
		if err := c.addLevel(p, r.Samples(c.kind+"/"+l.classes+"/"+l.way, c.unit), l.legend, i); err != nil {
			return err
		}
	}
	for i, l := range c.lines {
		if err := c.addLine(p, r, l, len(c.levels)+i); err != nil {
			return err
		}
	}
	p.Y.Min, p.Y.Max = 0, p.Y.Max*1.35 // room for the legend
	return p.Save(width, height, path)
}

// addLevel draws a level across the whole picture.
func (c chart) addLevel(p *plot.Plot, samples results.Samples, legend string, style int) error {
	if len(samples) == 0 {
		return fmt.Errorf("no results of %s, %s", c.kind, legend)
	}
	y := samples.Median() * c.scale
	line, err := plotter.NewLine(plotter.XYs{{X: float64(policies[0]), Y: y}, {X: float64(policies[len(policies)-1]), Y: y}})
	if err != nil {
		return err
	}
	line.Color, line.Dashes, line.Width = plotutil.Color(style), plotutil.Dashes(1), vg.Points(1.5)
	p.Add(line)
	p.Legend.Add(legend, line)
	return nil
}

// addLine draws a way to decide as far as it was measured.
func (c chart) addLine(p *plot.Plot, r *results.Results, l line, style int) error {
	var s series
	for _, n := range policies {
		if samples := r.Samples(fmt.Sprintf("%s/%s/%s/policies=%d", c.kind, l.classes, l.way, n), c.unit); len(samples) > 0 {
			s.add(float64(n), samples, c.scale)
		}
	}
	if len(s.XYs) == 0 {
		return nil
	}
	line, points, err := plotter.NewLinePoints(s.XYs)
	if err != nil {
		return err
	}
	bars, err := plotter.NewYErrorBars(s)
	if err != nil {
		return err
	}
	line.Color, line.Width = plotutil.Color(style), vg.Points(1.5)
	points.Color, points.Shape = plotutil.Color(style), plotutil.Shape(style)
	bars.Color = color.Gray{Y: 0x80}
	p.Add(bars, line, points)
	p.Legend.Add(l.legend, line, points)
	return nil
}

// series are points with their spread.
type series struct {
	plotter.XYs
	plotter.YErrors
}

func (s *series) add(x float64, samples results.Samples, scale float64) {
	median := samples.Median()
	low, high := samples.Spread()
	s.XYs = append(s.XYs, plotter.XY{X: x, Y: median * scale})
	s.YErrors = append(s.YErrors, struct{ Low, High float64 }{(median - low) * scale, (high - median) * scale})
}

// ticks are the numbers of policies.
type ticks struct{}

// Ticks implements plot.Ticker.
func (ticks) Ticks(float64, float64) []plot.Tick {
	var all []plot.Tick
	for _, n := range policies {
		all = append(all, plot.Tick{Value: float64(n), Label: fmt.Sprint(n)})
	}
	return all
}
