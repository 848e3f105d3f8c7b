package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue/queuetest"
)

func TestConfigNamesItsFaults(t *testing.T) {
	reg := prometheus.NewRegistry()
	tests := []struct {
		cfg  queue.Config
		want string // empty for no error
	}{
		{queue.Config{Count: 1, Registerer: reg}, ""},
		{queue.Config{First: 65535, Count: 1, CopyRange: 65531, Registerer: reg}, ""},
		{queue.Config{First: 65535, Count: 2, Registerer: reg}, "First 65535 and Count 2 reach beyond queue number 65535"},
		{queue.Config{First: 1, Count: 65535, Registerer: reg}, ""},
		{queue.Config{CopyRange: 65532, ReceiveBuffer: -1},
			"Count is 0\nCopyRange 65532 is above 65531\nReceiveBuffer -1 is negative\nRegisterer is nil"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%d queues from %d, %d packets of %d bytes, buffer %d", tt.cfg.Count, tt.cfg.First, tt.cfg.MaxLen, tt.cfg.CopyRange, tt.cfg.ReceiveBuffer), func(t *testing.T) {
			got := ""
			if err := tt.cfg.Validate(); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%+v: got %q, want %q", tt.cfg, got, tt.want)
			}
		})
	}
	if _, err := queue.New(queue.Config{Count: 1}); err == nil {
		t.Error("New accepted an invalid Config")
	}
}

func TestMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		cfg := on(k)
		cfg.Count = 2
		r := startGated(t, cfg, always(queue.Drop), nil)
		defer k.Take(102)()
		time.Sleep(time.Second)
		for number := range uint16(3) {
			k.Send(100+number, payload("x"))
		}
		const want = `
# HELP nfqueue_packet_id Packets queued since the queue was bound.
# TYPE nfqueue_packet_id counter
nfqueue_packet_id{queue="100"} 1
nfqueue_packet_id{queue="101"} 1
# HELP nfqueue_queue_total Packets that wait in the queue.
# TYPE nfqueue_queue_total gauge
nfqueue_queue_total{queue="100"} 1
nfqueue_queue_total{queue="101"} 1
`
		if err := testutil.GatherAndCompare(r.reg, strings.NewReader(want), "nfqueue_packet_id", "nfqueue_queue_total"); err != nil {
			t.Error(err)
		}
		problems, err := testutil.GatherAndLint(r.reg)
		if err != nil {
			t.Error(err)
		}
		for _, p := range problems {
			if !strings.HasPrefix(p.Metric, "nfqueue_") { // names of existing dashboards
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
	})
}

func TestQueuesShareARegistryByTheirPurpose(t *testing.T) {
	inBubble(t, func(t *testing.T, k *queuetest.Kernel) {
		reg := prometheus.NewPedanticRegistry()
		for number, purpose := range map[uint16]string{100: "decide", 101: "observe"} {
			cfg := on(k)
			cfg.First, cfg.Purpose, cfg.Registerer = number, purpose, reg
			if _, err := queue.New(cfg); err != nil {
				t.Fatal(err)
			}
		}
		const want = `
# HELP netpol_queue_bound 1 while this agent has bound the queue number, else 0.
# TYPE netpol_queue_bound gauge
netpol_queue_bound{purpose="decide",queue="100"} 0
netpol_queue_bound{purpose="observe",queue="101"} 0
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "netpol_queue_bound"); err != nil {
			t.Error(err)
		}
	})
}
