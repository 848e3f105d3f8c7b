// The dashboard command draws a recorded dashboard (package recording) as one picture: each
// panel in its place, as lines, as a number, or as a row of cells for each node.
package main

import (
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/recording"
)

// The size of a field of the dashboard's grid, the space between panels, and the text size.
const (
	columnWidth = 40 * vg.Length(1)
	rowHeight   = 24 * vg.Length(1)
	space       = 6 * vg.Length(1)
	textSize    = 9 * vg.Length(1)
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "Usage: dashboard RECORDING PICTURE.svg")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

func run(recorded, picture string) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans", Size: textSize}
	r, err := recording.Read(recorded)
	if err != nil {
		return err
	}
	rows := closeRanks(r.Panels)
	svg := vgsvg.New(24*columnWidth, vg.Length(rows)*rowHeight)
	whole := draw.New(svg)
	whole.SetColor(color.White) // for readers with a dark background
	whole.Fill(whole.Rectangle.Path())
	for _, p := range r.Panels {
		at := whole.Min.Add(vg.Point{X: vg.Length(p.Place.X) * columnWidth, Y: vg.Length(rows-p.Place.Y-p.Place.H) * rowHeight})
		size := vg.Point{X: vg.Length(p.Place.W) * columnWidth, Y: vg.Length(p.Place.H) * rowHeight}
		inner := vg.Rectangle{Min: at.Add(vg.Point{X: space, Y: space}), Max: at.Add(size).Sub(vg.Point{X: space, Y: space})}
		if err := drawPanel(draw.Canvas{Canvas: svg, Rectangle: inner}, p); err != nil {
			return fmt.Errorf("draw %s: %w", p.Title, err)
		}
	}
	file, err := os.Create(picture)
	if err != nil {
		return err
	}
	if _, err := svg.WriteTo(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// closeRanks moves panels up over the headings between them, which are not drawn, and
// returns the remaining number of rows of the grid.
func closeRanks(panels []recording.Panel) int {
	used := map[int]bool{}
	for _, p := range panels {
		for y := p.Place.Y; y < p.Place.Y+p.Place.H; y++ {
			used[y] = true
		}
	}
	above := func(row int) (n int) {
		for y := range row {
			if used[y] {
				n++
			}
		}
		return n
	}
	for i := range panels {
		panels[i].Place.Y = above(panels[i].Place.Y)
	}
	return len(used)
}
