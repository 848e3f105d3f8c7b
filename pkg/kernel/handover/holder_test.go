package handover

import (
	"slices"
	"testing"
)

// known is what an agent knows of the agents of a node.
type known struct {
	bound     []uint16
	listening bool
}

func (k known) Bound(number uint16) bool { return slices.Contains(k.bound, number) }
func (k known) Listening() bool          { return k.listening }
func (k known) Alone() bool              { return len(k.bound) == 0 }

func TestWhoStandsBy(t *testing.T) {
	own, older, newer := Holder{Started: 5, Queue: 110}, Holder{Started: 4, Queue: 103}, Holder{Started: 5, Queue: 117}
	const listening, decides = true, true
	for _, tt := range []struct {
		name    string
		record  Record
		known   known
		decides bool
		behind  []uint16 // queue numbers of the agent that holds the table, nil if this one writes it
		next    bool
	}{
		{"released", Record{Named: true}, known{}, false, nil, false},
		{"its own", Record{Named: true, Holder: own}, known{bound: []uint16{110}}, false, nil, false},
		{"its number is of an earlier agent", Record{Named: true, Holder: Holder{9, 110}}, known{bound: []uint16{110}}, false, nil, false},
		{"a newer one is gone", Record{Named: true, Holder: newer}, known{}, false, nil, false},
		{"a newer one lives", Record{Named: true, Holder: newer}, known{[]uint16{117}, listening}, decides, []uint16{117}, false},
		{"an older one lives", Record{Named: true, Holder: older}, known{[]uint16{103}, listening}, decides, nil, false},
		{"an older one lives, and this one has no snapshot", Record{Named: true, Holder: older}, known{[]uint16{103}, listening}, false, []uint16{103}, true},
		{"an older one lives, and this one does not listen", Record{Named: true, Holder: older}, known{bound: []uint16{103}}, decides, []uint16{103}, true},
		{"an earlier version lives", Record{Queues: []uint16{100, 101}}, known{[]uint16{101}, listening}, decides, []uint16{100, 101}, false},
		{"an earlier version is gone", Record{Queues: []uint16{100, 101}}, known{}, false, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := own.Stand(tt.record, tt.known, tt.decides)
			if (got.Reason == "") != (tt.behind == nil) || !slices.Equal(got.Behind, tt.behind) || got.Next != tt.next {
				t.Errorf("got %+v", got)
			}
			if tt.behind != nil && (got.Over(tt.known, tt.decides) || !got.Over(known{}, false)) {
				t.Error("standby must end exactly when the earlier agents are gone")
			}
		})
	}
}
