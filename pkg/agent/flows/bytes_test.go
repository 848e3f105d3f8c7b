package flows

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

func TestBytesAreThoseOfOpenConnections(t *testing.T) {
	s, crawling := clusterOf(2), crawls()
	to := policy.Query{Packet: *tcp(web, outside.Next(), 443)}
	crawl := crawling.Evaluate(to)
	for _, tc := range []struct {
		name    string
		open    []module.Connection
		counted bool
		err     error
		want    map[uint16]any // by the port of the flow
	}{
		{"not counted", nil, false, nil, map[uint16]any{80: nil, 81: nil, 82: nil, 443: nil}},
		{"none is open", nil, true, nil, map[uint16]any{80: uint64(0), 81: nil, 82: uint64(0), 443: uint64(0)}},
		{"two of a flow", []module.Connection{
			{Packet: *tcp(web, db, 80), Decision: allowed, Snapshot: s, Bytes: 1000},
			{Packet: *tcp(web, db, 80), Decision: allowed, Snapshot: s, Bytes: 24},
		}, true, nil, map[uint16]any{80: uint64(1024), 81: nil, 82: uint64(0), 443: uint64(0)}},
		{"that audited policies would deny", []module.Connection{
			{Packet: *tcp(web, db, 80), Decision: allowed, Would: &denied, Snapshot: s, Bytes: 1000},
			{Packet: *tcp(web, db, 82), Decision: allowed, Would: &denied, Snapshot: s, Bytes: 5},
		}, true, nil, map[uint16]any{80: uint64(0), 81: nil, 82: uint64(5), 443: uint64(0)}},
		{"of other flows", []module.Connection{
			{Packet: *tcp(other, db, 80), Decision: allowed, Snapshot: s, Bytes: 1000},
			{Packet: *tcp(web, db, 81), Decision: allowed, Snapshot: s, Bytes: 1000},
			{Packet: *tcp(web, db, 80), Decision: denied, Snapshot: s, Bytes: 1000},
		}, true, nil, map[uint16]any{80: uint64(0), 81: nil, 82: uint64(0), 443: uint64(0)}},
		{"other addresses of the block", []module.Connection{
			{Packet: to.Packet, Decision: crawl, Snapshot: crawling, Bytes: 7},
			{Packet: *tcp(web, outside.Next().Next(), 443), Decision: crawl, Snapshot: crawling, Bytes: 8},
		}, true, nil, map[uint16]any{80: uint64(0), 81: nil, 82: uint64(0), 443: uint64(15)}},
		{"an error", []module.Connection{{Packet: *tcp(web, db, 80), Decision: allowed, Snapshot: s, Bytes: 1000}}, true, errors.New("no buffer space available"),
			map[uint16]any{80: nil, 81: nil, 82: nil, 443: nil}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _, _ := newRecorder()
			listed := 0
			r.cfg.Connections = func(_ context.Context, yield func(*module.Connection)) (bool, error) {
				listed++
				for i := range tc.open {
					yield(&tc.open[i])
				}
				return tc.counted, tc.err
			}
			decide(r, tcp(web, db, 80), allowed, s, 0)
			decide(r, tcp(web, db, 81), denied, s, 0)
			d := allowed
			r.decide(tcp(web, db, 82), &d, s, &denied, r.epoch)
			r.drain()
			decideBy(r, crawling, tcp(web, outside.Next(), 443), nil)
			got := map[uint16]any{}
			for _, rec := range r.Read(Filter{}) {
				switch {
				case rec.Type != TypeFlow:
				case rec.Bytes == nil:
					got[rec.Port] = nil
				default:
					got[rec.Port] = *rec.Bytes
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("bytes of flows (-want +got):\n%s", diff)
			}
			r.counted = time.Now().Add(time.Hour)
			r.Read(Filter{})
			r.counted = time.Time{}
			r.Read(Filter{Denied: true})
			r.Read(Filter{Rules: true})
			if listed != 1 {
				t.Errorf("connections were listed %d times: they are neither for denied flows nor for rules, nor again at once", listed)
			}
			r.Read(Filter{Namespace: "shop"})
			if listed != 2 {
				t.Errorf("connections were listed %d times, want once more after a while", listed)
			}
		})
	}
}

// A hostile pod has no more counters than flows.
func TestConnectionsTakeNoRoomOfTheirOwn(t *testing.T) {
	r, _, _ := newRecorder()
	s := clusterOf(2)
	decide(r, tcp(web, db, 80), allowed, s, 0)
	r.cfg.Connections = func(_ context.Context, yield func(*module.Connection)) (bool, error) {
		for port := range uint16(10000) {
			yield(&module.Connection{Packet: packet.Packet{Src: tcp(other, db, 1).Src, Dst: tcp(other, db, port).Dst, Proto: packet.TCP}, Decision: allowed, Snapshot: s, Bytes: 1})
		}
		return true, nil
	}
	if records := r.Read(Filter{}); len(records) != 2 || *records[1].Bytes != 0 {
		t.Errorf("%v", lines(records))
	}
}
