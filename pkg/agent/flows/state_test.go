package flows

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

// The first record of each answer has the state of the agent, as it is then, and programs that
// read it get printable text.
func TestAnswersHaveTheStateOfTheAgent(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state := module.State{Version: "v1.2.3", NotReady: "no snapshot\x1b[31m"}
	r := New(Config{Node: "n1", State: func() module.State { return state }, Registerer: prometheus.NewRegistry()})
	for _, f := range []Filter{{}, {Rules: true}} {
		var text bytes.Buffer
		if err := Encode(&text, r.Read(f)); err != nil {
			t.Fatal(err)
		}
		var got []Record
		if err := Decode(&text, func(r *Record) error { got = append(got, *r); return nil }); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].State == nil || got[0].Version != "v1.2.3" || !strings.HasPrefix(got[0].NotReady, "no snapshot") || strings.Contains(got[0].NotReady, "\x1b") || got[0].Snapshot != nil {
			t.Errorf("%+v: got %+v", f, got)
		}
	}

	state = module.State{Version: "v1.2.3", Pods: 7, Snapshot: &at}

	if got := r.Read(Filter{})[0]; got.NotReady != "" || got.Pods != 7 || !got.Snapshot.Equal(at) {
		t.Errorf("got %+v", got.State)
	}
}
