package netpol

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// timed is a fake whose connections take 2 ms between selected pods, otherwise 1 ms.
type timed struct{ *fake }

func (f timed) selected() bool {
	return len(f.applied) > 0 && len(f.applied[len(f.applied)-1].AllPolicies()) > 0
}

func (f timed) Time(_ context.Context, connections []Connection) ([]time.Duration, error) {
	took := time.Millisecond
	if f.selected() {
		took *= 2
	}
	for _, c := range connections {
		if c.Protocol != corev1.ProtocolTCP || c.From == c.To {
			return nil, errors.New("not to be measured: " + c.String())
		}
	}
	return slices.Repeat([]time.Duration{took}, len(connections)), nil
}

func newTimed(enforces bool) timed {
	var f timed
	f.fake = newFake(func(c Connection, _ int) Outcome {
		return connectedIf(!enforces || !f.selected() || c.From == c.To || c.Protocol == corev1.ProtocolTCP)
	})
	f.support.Protocols = append(f.support.Protocols, corev1.ProtocolUDP)
	return f
}

func TestMeasureLatency(t *testing.T) {
	got, err := Runner{Backend: newTimed(true)}.MeasureLatency(t.Context())
	if err != nil || got.Connections != 9*8*2*latencyRounds || got.Free.P50 != time.Millisecond || got.Selected.P50 != 2*time.Millisecond {
		t.Errorf("got %v, %v", got, err)
	}
}

// Without a provider the selected pods are none, so there is nothing to compare.
func TestLatencyNeedsPoliciesInForce(t *testing.T) {
	if got, err := (Runner{Backend: newTimed(false), Settle: 1}).MeasureLatency(t.Context()); err == nil || !strings.Contains(err.Error(), "with policies: UDP 80 IPv4 is not as expected") {
		t.Errorf("got %v, %v", got, err)
	}
}

// timingNone is a Timed that cannot measure anything.
type timingNone struct{ timed }

func (timingNone) Time(context.Context, []Connection) ([]time.Duration, error) {
	return nil, errors.ErrUnsupported
}

func TestLatencyOfOtherBackends(t *testing.T) {
	for _, backend := range []Backend{newFake(nil), timingNone{newTimed(true)}} {
		if got, err := (Runner{Backend: backend}).MeasureLatency(t.Context()); got != nil || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
	}
}
