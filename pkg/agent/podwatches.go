package agent

import (
	"fmt"
	"slices"
)

// PodWatches selects the pods of other nodes that the agent watches.
type PodWatches uint8

const (
	// AllPods watches every pod of the cluster.
	AllPods PodWatches = iota
	// NeededPods watches the pods that policies of this node's pods select as peers. It needs
	// an API server.
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
