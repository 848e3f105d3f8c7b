package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"
)

// An order is an attempt that the prober is asked to make: a line of its input.
type order struct {
	ID           int    `json:"id"`
	Target       string `json:"target"`       // tcp://ADDRESS:PORT, udp://…, sctp://… or icmp://ADDRESS; hold: "" asks about a connection
	Milliseconds int    `json:"milliseconds"` // how long it may take
	SourcePort   int    `json:"sourcePort"`   // hold: 0 lets the kernel choose
}

// An answer is what came of an order: a line of the output, with the same ID.
type answer struct {
	ID int `json:"id"`
	// Failure is the kind of failure, as in a report. Without it the attempt succeeded.
	Failure string `json:"failure,omitempty"`
	Error   string `json:"error,omitempty"`
	// Took is how long an attempt took that succeeded.
	Took float64 `json:"tookMilliseconds,omitempty"`
	// Silent is how long ago the last answer came on a connection that is held.
	Silent float64 `json:"silentMilliseconds,omitempty"`
}

// failed is the answer to an order that failed.
func failed(id int, err error) answer {
	return answer{ID: id, Failure: kindOf(err), Error: err.Error()}
}

func tryFlags(flags *flag.FlagSet) func(context.Context, io.ReadCloser, io.Writer) error {
	atOnce := flags.Int("at-once", 32, "how many attempts are made at the same time")
	return func(ctx context.Context, in io.ReadCloser, out io.Writer) error {
		if *atOnce < 1 {
			return fmt.Errorf("-at-once %d: must be at least 1", *atOnce)
		}
		defer context.AfterFunc(ctx, func() { in.Close() })()
		err := try(in, out, *atOnce)
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
}

// try makes the attempts that it reads until the input ends, some at the same time.
func try(in io.Reader, out io.Writer, atOnce int) error {
	decoder, encoder := json.NewDecoder(in), json.NewEncoder(out)
	var mu sync.Mutex // of the encoder
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, atOnce)
	for {
		var o order
		if err := decoder.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read what to try: %w", err)
		}
		free <- struct{}{}
		wg.Go(func() {
			a := o.try()
			<-free
			mu.Lock()
			defer mu.Unlock()
			_ = encoder.Encode(a) // who does not read answers ends the input, too
		})
	}
}

// try makes the attempt.
func (o order) try() answer {
	begun := time.Now()
	deadline := begun.Add(time.Duration(o.Milliseconds) * time.Millisecond)
	targets, err := parseTargets(context.Background(), []string{o.Target}, false, noNames)
	if err == nil {
		err = attempt(targets[0], deadline)
	}
	if err != nil {
		return failed(o.ID, err)
	}
	return answer{ID: o.ID, Took: milliseconds(time.Since(begun))}
}

// noNames is a resolver that knows no name.
func noNames(context.Context, string) ([]netip.Addr, error) {
	return nil, errors.New("must be an address")
}
