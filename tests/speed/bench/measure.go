package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/load"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

const (
	pace      = 60000 // flows per second of the paced run
	burst     = 8192  // flows at once
	clients   = 64    // concurrent clients
	floodRate = 30000 // flows per second of another pod

	// bystanderPause keeps a pod that connects during a flood within its share of
	// the queue.
	bystanderPause = 2 * time.Millisecond

	settleTimeout = 30 * time.Second // until packets have arrived or are lost
	// stalledAfter is when a queued packet counts as lost. A callback loop that fails to
	// answer a packet leaves it in the queue forever.
	stalledAfter = time.Second
	// quietAfter is when no more packets are expected if none wait in a queue: threads of the
	// kernel may still have some.
	quietAfter = 300 * time.Millisecond
	// settleInterval is the precision with which the arrival of the last packet is known.
	settleInterval = time.Millisecond
)

// amounts say how much is measured in a round.
type amounts struct {
	flows     int           // of a flood and of the paced run
	connect   time.Duration // connections one after the other
	bystander time.Duration // the same during a flood
	clients   time.Duration // connections of many clients
}

// measurement is one kind of measurement.
type measurement struct {
	name string
	// brief measurements are also made of ways that are only for comparison.
	brief bool
	do    func(ctx context.Context, s *setup, a amounts) (results.Line, error)
}

// measurements are made in this order in every round.
var measurements = []measurement{
	{"Connect/known", true, func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.connect(load.Clients{Count: 1, To: tcp(s.classes.known), During: a.connect})
	}},
	{"Connect/unknown", true, func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.connect(load.Clients{Count: 1, To: tcp(s.classes.unknown), During: a.connect})
	}},
	{"Bystander/known", false, func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.besideFlood(load.Clients{Count: 1, To: tcp(s.classes.known), Pause: bystanderPause, During: a.bystander})
	}},
	{"Bystander/unknown", false, func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.besideFlood(load.Clients{Count: 1, To: tcp(s.classes.unknown), Pause: bystanderPause, During: a.bystander})
	}},
	{"Clients/known", true, func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.connect(load.Clients{Count: clients, To: tcp(s.classes.known), During: a.clients})
	}},
	{"Clients/unknown", true, func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.connect(load.Clients{Count: clients, To: tcp(s.classes.unknown), During: a.clients})
	}},
	{"Clients/mixture", false, func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.connect(load.Clients{Count: clients, To: tcp(s.classes.mixed), During: a.clients})
	}},
	{"Flood/one", false, func(ctx context.Context, s *setup, a amounts) (results.Line, error) {
		return s.flood(ctx, udp(s.classes.known), a.flows, 0)
	}},
	{"Flood/random", true, func(ctx context.Context, s *setup, a amounts) (results.Line, error) {
		return s.flood(ctx, udp(s.classes.unknown), a.flows, 0)
	}},
	{"Flood/denied", false, func(ctx context.Context, s *setup, a amounts) (results.Line, error) {
		line, err := s.flood(ctx, udp(s.classes.denied), a.flows, 0)
		if delivered := line.Value("delivered/s"); err == nil && delivered > 0 {
			err = fmt.Errorf("%v of the packets that are denied were delivered each second", delivered)
		}
		return line, err
	}},
	{"Paced/random", false, func(ctx context.Context, s *setup, a amounts) (results.Line, error) {
		return s.flood(ctx, udp(s.classes.unknown), a.flows, pace)
	}},
	{"Burst/random", false, func(ctx context.Context, s *setup, _ amounts) (results.Line, error) {
		return s.flood(ctx, udp(s.classes.unknown), burst, 0)
	}},
}

// appliesTo reports whether m is made of a way.
func (m measurement) appliesTo(w way) bool {
	return (m.brief || !w.brief) && (w.denies || !strings.HasSuffix(m.name, "/denied"))
}

// flood measures new UDP flows, at a pace or as fast as possible.
func (s *setup) flood(ctx context.Context, to func() netip.AddrPort, count, perSecond int) (results.Line, error) {
	account, err := s.open()
	if err != nil {
		return results.Line{}, err
	}
	before, err := s.inTransit()
	if err != nil {
		return results.Line{}, err
	}
	began := time.Now()
	sending, err := s.flows.Send(to, count, perSecond)
	if err != nil {
		return results.Line{}, err
	}
	after, took, err := s.settle(ctx, before, count, began)
	if err != nil {
		return results.Line{}, err
	}
	delivered := after.delivered - before.delivered
	line := results.Line{Count: count, Values: []results.Value{
		{Number: perSec(after.sent-before.sent, sending), Unit: "sent/s"},
		{Number: perSec(delivered, took), Unit: "delivered/s"},
		{Number: float64(count - delivered), Unit: "lost"},
	}}
	costs, err := account.close(count, count, "flow")
	line.Values = append(line.Values, costs...)
	return line, err
}

// settle waits until count packets have arrived or none is in transit. It returns the
// counts and the time of the last arrival.
func (s *setup) settle(ctx context.Context, before inTransit, count int, began time.Time) (seen inTransit, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	since := time.Now() // when this state was first seen
	for {
		now, err := s.inTransit()
		if err != nil {
			return now, 0, err
		}
		if now != seen {
			seen, since = now, time.Now()
		}
		unchanged := time.Since(since)
		if seen.delivered-before.delivered >= count || unchanged > stalledAfter || seen.inQueues == 0 && unchanged > quietAfter {
			return seen, since.Sub(began), nil
		}
		select {
		case <-ctx.Done():
			return seen, 0, ctx.Err()
		case <-time.After(settleInterval):
		}
	}
}

// inTransit counts packets by the places that they have reached.
type inTransit struct{ sent, delivered, inQueues int }

func (s *setup) inTransit() (u inTransit, err error) {
	stats, err := s.stats()
	if err != nil {
		return u, err
	}
	for _, queue := range stats {
		u.inQueues += int(queue.Waiting)
	}
	if u.sent, err = s.sent.Packets(); err != nil {
		return u, err
	}
	u.delivered, err = s.delivered.Packets()
	return u, err
}

// connect opens TCP connections.
func (s *setup) connect(c load.Clients) (results.Line, error) {
	account, err := s.open()
	if err != nil {
		return results.Line{}, err
	}
	connections, err := load.Connect(s.client.NetNS(), c)
	if err != nil {
		return results.Line{}, err
	}
	took := connections.Took
	slices.Sort(took)
	line := results.Line{Count: len(took), Values: []results.Value{
		{Number: perSec(connections.InTime, c.During), Unit: "connects/s"},
		{Number: percentile(took, 50), Unit: "p50-ns"},
		{Number: percentile(took, 99), Unit: "p99-ns"},
	}}
	costs, err := account.close(len(took), len(took), "connect")
	line.Values = append(line.Values, costs...)
	return line, err
}

// besideFlood is connect while another pod sends packets, each of an unknown class. The
// line has the rate of that pod but no costs, which would mostly be those of the flood.
func (s *setup) besideFlood(c load.Clients) (results.Line, error) {
	before, err := s.sent.Packets()
	if err != nil {
		return results.Line{}, err
	}
	type sent struct {
		took time.Duration
		err  error
	}
	ended := make(chan sent)
	go func() {
		took, err := s.flooder.Send(udp(s.floodClasses.unknown), int(floodRate*c.During.Seconds()), floodRate)
		ended <- sent{took, err}
	}()
	line, err := s.connect(c)
	flood := <-ended
	after, meterErr := s.sent.Packets()
	if err := errors.Join(err, flood.err, meterErr); err != nil {
		return line, err
	}
	line.Values = append(line.Values[:3], results.Value{Number: perSec(after-before, flood.took), Unit: "flood-sent/s"})
	return line, nil
}

// percentile returns a percentile of sorted durations, in nanoseconds.
func percentile(sorted []time.Duration, percent int) float64 {
	return float64(sorted[(len(sorted)-1)*percent/100])
}

// perSec returns a rate as an integer, 0 if no time has passed.
func perSec(count int, took time.Duration) float64 {
	if took <= 0 {
		return 0
	}
	return float64(int(float64(count) / took.Seconds()))
}
