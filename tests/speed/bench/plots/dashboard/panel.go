package main

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/recording"
)

// units maps the dashboard's units to their printed form.
var units = map[string]string{"none": "", "s": "seconds", "µs": "µs", "pps": "packets/s", "reqps": "requests/s"}

func drawPanel(c draw.Canvas, p recording.Panel) error {
	unit, ok := units[p.Unit]
	if !ok {
		return fmt.Errorf("unknown unit %q", p.Unit)
	}
	switch p.Type {
	case "stat":
		return drawNumber(c, p, unit)
	case "timeseries":
		return drawLines(c, p, unit)
	case "status-history":
		return drawCells(c, p, unit)
	}
	return fmt.Errorf("unknown type %q", p.Type)
}

// newPlot returns a plot over time.
func newPlot(p recording.Panel, unit string) *plot.Plot {
	out := plot.New()
	out.Title.Text, out.Title.Padding = p.Title, vg.Points(4)
	out.Title.TextStyle.Font.Size = textSize + 1
	out.X.Label.Text, out.Y.Label.Text = "seconds", unit
	out.X.Min = 0
	return out
}

// drawNumber draws the last value.
func drawNumber(c draw.Canvas, p recording.Panel, unit string) error {
	if len(p.Lines) != 1 || len(p.Lines[0].Points) == 0 {
		return fmt.Errorf("%d series, want one with a value", len(p.Lines))
	}
	points := p.Lines[0].Points
	style := plot.New().Title.TextStyle
	style.Font.Size, style.XAlign, style.YAlign = textSize+1, draw.XCenter, draw.YTop
	middle := (c.Min.X + c.Max.X) / 2
	c.FillText(style, vg.Point{X: middle, Y: c.Max.Y}, p.Title)
	style.Font.Size, style.YAlign = 3*textSize, draw.YCenter
	c.FillText(style, vg.Point{X: middle, Y: (c.Min.Y+c.Max.Y)/2 - textSize}, fmt.Sprintf("%.3g", points[len(points)-1].Value))
	style.Font.Size, style.YAlign = textSize, draw.YBottom
	c.FillText(style, vg.Point{X: middle, Y: c.Min.Y}, unit)
	return nil
}

func drawLines(c draw.Canvas, p recording.Panel, unit string) error {
	out := newPlot(p, unit)
	out.Legend.Top, out.Legend.Left = true, true
	out.Legend.TextStyle.Font.Size = textSize - 2
	out.Add(plotter.NewGrid())
	for i, l := range p.Lines {
		if len(l.Points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points(l))
		if err != nil {
			return err
		}
		line.Color = plotutil.Color(i)
		out.Add(line)
		out.Legend.Add(l.Legend, line)
	}
	// From 0, with room for the legend.
	out.Y.Min, out.Y.Max = 0, max(out.Y.Max, 1e-3)*(1.15+0.09*float64(len(p.Lines)))
	out.Draw(c)
	return nil
}

func points(l recording.Line) (out plotter.XYs) {
	for _, p := range l.Points {
		out = append(out, plotter.XY{X: p.Seconds, Y: p.Value})
	}
	return out
}

// drawCells draws a row of cells for each series. Higher values are darker.
func drawCells(c draw.Canvas, p recording.Panel, unit string) error {
	highest := 0.0
	var names []string
	for _, l := range p.Lines {
		names = append(names, l.Legend)
		for _, point := range l.Points {
			highest = max(highest, point.Value)
		}
	}
	out := newPlot(p, "")
	out.X.Label.Text = fmt.Sprintf("seconds; white is 0, red is %.3g %s", highest, unit)
	out.Add(cells{p.Lines, highest})
	out.NominalY(names...)
	out.Y.Min, out.Y.Max = -0.5, float64(len(p.Lines))-0.5
	out.Draw(c)
	return nil
}

// cells are rows of values over time.
type cells struct {
	lines   []recording.Line
	highest float64
}

// Plot implements plot.Plotter.
func (s cells) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for row, line := range s.lines {
		for i, point := range line.Points {
			until := point.Seconds + 1
			if i+1 < len(line.Points) {
				until = math.Min(until, line.Points[i+1].Seconds)
			}
			low, high := float64(row)-0.4, float64(row)+0.4
			c.FillPolygon(s.shade(point.Value), []vg.Point{
				{X: x(point.Seconds), Y: y(low)}, {X: x(until), Y: y(low)}, {X: x(until), Y: y(high)}, {X: x(point.Seconds), Y: y(high)},
			})
		}
	}
}

// DataRange implements plot.DataRanger.
func (s cells) DataRange() (xmin, xmax, ymin, ymax float64) {
	for _, line := range s.lines {
		for _, point := range line.Points {
			xmax = math.Max(xmax, point.Seconds+1)
		}
	}
	return 0, xmax, -0.5, float64(len(s.lines)) - 0.5
}

func (s cells) shade(value float64) color.Color {
	part := 0.0
	if s.highest > 0 {
		part = value / s.highest
	}
	return color.RGBA{R: uint8(255 - 20*part), G: uint8(255 - 215*part), B: uint8(255 - 215*part), A: 255}
}
