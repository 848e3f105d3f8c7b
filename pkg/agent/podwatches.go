package agent

import (
	"fmt"
	"slices"
)

// PodWatches is which pods of other nodes the agent watches.
type PodWatches uint8

const (
	// AllPods is every pod of the cluster.
	AllPods PodWatches = iota
	// NeededPods are those that policies of this node's pods name. It needs an API server.
	NeededPods
)

var podWatchesNames = []string{AllPods: "all", NeededPods: "needed"}

// String returns the name of w in flags.
func (w PodWatches) String() string {
	if int(w) < len(podWatchesNames) {
		return podWatchesNames[w]
	}
	return fmt.Sprintf("PodWatches(%d)", uint8(w))
}

// MarshalText implements encoding.TextMarshaler.
func (w PodWatches) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText parses all or needed, so that a PodWatches can be a flag.
func (w *PodWatches) UnmarshalText(text []byte) error {
	i := slices.Index(podWatchesNames, string(text))
	if i < 0 {
		return fmt.Errorf("%q is none of all, needed", text)
	}
	*w = PodWatches(i)
	return nil
}
