package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/bench/cluster"
	"sigs.k8s.io/kube-network-policies/tests/bench/load"
	"sigs.k8s.io/kube-network-policies/tests/bench/results"
	"sigs.k8s.io/kube-network-policies/tests/lab"
)

const (
	pace    = 60000 // flows per second of the paced run
	burst   = 8192  // flows at once
	clients = 64    // that connect side by side

	settleTimeout = 30 * time.Second // until packets have arrived or are lost
	// stalledAfter is when a queued packet counts as lost: a callback loop that fails
	// to answer a packet leaves it in the queue for ever.
	stalledAfter = time.Second
)

// amounts are how much is measured in a round.
type amounts struct {
	flows   int           // of a flood
	sockets int           // of a flood with a socket for each flow
	paced   int           // of the paced run
	connect time.Duration // connections one after the other
	clients time.Duration // connections of many clients
}

// measurement is one kind of measurement.
type measurement struct {
	name string
	do   func(ctx context.Context, s *setup, a amounts) (results.Line, error)
}

// measurements are made in this order in every round.
var measurements = []measurement{
	{"UDPFlows", func(ctx context.Context, s *setup, a amounts) (results.Line, error) {
		return s.sendFlows(ctx, a.flows, 0)
	}},
	{"UDPSockets", func(ctx context.Context, s *setup, a amounts) (results.Line, error) {
		return s.measureFlows(ctx, a.sockets, s.flows.SendFromSockets)
	}},
	{"UDPPaced", func(ctx context.Context, s *setup, a amounts) (results.Line, error) {
		return s.sendFlows(ctx, a.paced, pace)
	}},
	{"UDPBurst", func(ctx context.Context, s *setup, a amounts) (results.Line, error) {
		return s.sendFlows(ctx, burst, 0)
	}},
	{"TCPConnect", func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.connect(1, a.connect)
	}},
	{"TCPClients", func(_ context.Context, s *setup, a amounts) (results.Line, error) {
		return s.connect(clients, a.clients)
	}},
}

// sendFlows measures new UDP flows, at a pace or as fast as possible.
func (s *setup) sendFlows(ctx context.Context, count, perSecond int) (results.Line, error) {
	return s.measureFlows(ctx, count, func(count int) (time.Time, error) { return s.flows.Send(count, perSecond) })
}

// measureFlows has new UDP flows sent and waits until they have arrived or are lost.
func (s *setup) measureFlows(ctx context.Context, count int, send func(count int) (time.Time, error)) (results.Line, error) {
	account, err := s.open()
	if err != nil {
		return results.Line{}, err
	}
	before, _ := s.sink.Received()
	began, err := send(count)
	if err != nil {
		return results.Line{}, err
	}
	sending := time.Since(began)
	received, took, err := s.settle(ctx, before, count, began)
	if err != nil {
		return results.Line{}, err
	}
	line := results.Line{Count: count, Values: []results.Value{
		{Number: perSec(count, sending), Unit: "sent/s"},
		{Number: perSec(received, took), Unit: "flows/s"},
		{Number: float64(count - received), Unit: "lost"},
	}}
	costs, err := account.close(count, received, "flow")
	line.Values = append(line.Values, costs...)
	return line, err
}

// settle waits until no packet is in transit, and returns how many of count have
// arrived and in what time.
func (s *setup) settle(ctx context.Context, before, count int, began time.Time) (received int, took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	seen := inTransit{received: -1} // nothing was seen yet
	var since time.Time             // when it was first seen so
	err = lab.Poll(ctx, func() (bool, error) {
		now, err := s.inTransit()
		if now != seen {
			seen, since = now, time.Now()
		} else if now.none() || time.Since(since) > stalledAfter {
			return true, err
		}
		return seen.received-before == count, err
	})
	_, last := s.sink.Received()
	return seen.received - before, last.Sub(began), err
}

// inTransit counts packets by where they are.
type inTransit struct {
	received, inQueues int
	inSink             bool
}

func (u inTransit) none() bool { return u.inQueues == 0 && !u.inSink }

func (s *setup) inTransit() (u inTransit, err error) {
	stats, err := s.stats()
	if err != nil {
		return u, err
	}
	for _, queue := range stats {
		u.inQueues += int(queue.Waiting)
	}
	if u.inSink, err = s.sink.Waiting(); err != nil {
		return u, err
	}
	u.received, _ = s.sink.Received()
	return u, nil
}

// connect opens TCP connections.
func (s *setup) connect(clients int, during time.Duration) (results.Line, error) {
	account, err := s.open()
	if err != nil {
		return results.Line{}, err
	}
	took, err := load.Connect(s.client.NetNS(), s.at(cluster.Port), clients, during)
	if err != nil {
		return results.Line{}, err
	}
	if len(took) == 0 {
		return results.Line{}, fmt.Errorf("no connection in %s", during)
	}
	slices.Sort(took)
	line := results.Line{Count: len(took), Values: []results.Value{
		{Number: perSec(len(took), during), Unit: "connects/s"},
		{Number: percentile(took, 50), Unit: "p50-ns"},
		{Number: percentile(took, 90), Unit: "p90-ns"},
		{Number: percentile(took, 99), Unit: "p99-ns"},
	}}
	costs, err := account.close(len(took), len(took), "connect")
	line.Values = append(line.Values, costs...)
	return line, err
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
