package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/cluster/prober/held"
)

// hold opens a connection for each order with a target, and answers once the first bytes have come
// back. To an order without one it answers for how long the connection with this ID has been silent.
// When the input ends, it closes all of them.
func hold(in io.Reader, out io.Writer) error {
	var mu sync.Mutex // of the encoder and of open
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	open := make(map[int]*held.Conn)
	var wg sync.WaitGroup
	defer func() {
		wg.Wait()
		for _, h := range open {
			h.Close()
		}
	}()
	for {
		var o order
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read what to hold: %w", err)
		}
		if o.Target == "" {
			mu.Lock()
			_ = encoder.Encode(silence(o.ID, open[o.ID]))
			mu.Unlock()
			continue
		}
		wg.Go(func() {
			h, err := o.hold()
			a := answer{ID: o.ID}
			if err != nil {
				a = failed(o.ID, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				open[o.ID] = h
			}
			_ = encoder.Encode(a) // who does not read answers ends the input, too
		})
	}
}

// silence answers for how long a connection has been silent.
func silence(id int, h *held.Conn) answer {
	if h == nil {
		return failed(id, errors.New("no such connection"))
	}
	return answer{ID: id, Silent: milliseconds(h.Silent())}
}

// hold opens the connection and waits for its first answer.
func (o order) hold() (*held.Conn, error) {
	deadline := time.Now().Add(time.Duration(o.Milliseconds) * time.Millisecond)
	targets, err := parseTargets(context.Background(), []string{o.Target}, false, noNames)
	if err != nil {
		return nil, err
	}
	if p := targets[0].protocol; p == "icmp" || p == "sctp" {
		return nil, fmt.Errorf("attempts of %s make no connection that is held", p)
	}
	conn, err := dial(targets[0], deadline, o.SourcePort)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	return held.Keep(ctx, conn)
}
