// Package recording has what the panels of a dashboard showed for a while, for a picture.
package recording

import (
	"encoding/json"
	"os"
)

// Recording is what a dashboard showed, panel by panel.
type Recording struct{ Panels []Panel }

// Panel is a panel and what its queries returned.
type Panel struct {
	Title string
	Type  string // as Grafana calls it: stat, timeseries or status-history
	Unit  string // as Grafana calls it: none, s, µs, pps or reqps
	Place Place
	Lines []Line
}

// Place is where a panel is on a grid of 24 columns.
type Place struct{ X, Y, W, H int }

// Line is one series of a panel.
type Line struct {
	Legend string
	Points []Point
}

// Point is a value at a time.
type Point struct{ Seconds, Value float64 } // since the begin

// Write writes a recording to a file.
func (r Recording) Write(file string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

// Read reads a file that Write has written.
func Read(file string) (r Recording, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}
