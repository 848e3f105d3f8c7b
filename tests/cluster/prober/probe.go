package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// options are what is to be probed.
type options struct {
	allowed, denied texts
	delay           time.Duration
	interval        time.Duration
	timeout         time.Duration
	duration        time.Duration
	maxGap          time.Duration
	maxFailed       int
}

// texts is a flag that can be repeated.
type texts []string

func (t *texts) String() string { return strings.Join(*t, " ") }

func (t *texts) Set(value string) error {
	*t = append(*t, value)
	return nil
}

func probeFlags(flags *flag.FlagSet) *options {
	o := new(options)
	flags.Var(&o.allowed, "allowed", "tcp://HOST:PORT, udp://HOST:PORT, sctp://HOST:PORT or icmp://HOST that policies allow; repeatable; a name stands for each of its addresses; sctp needs CAP_NET_RAW")
	flags.Var(&o.denied, "denied", "the same for what policies deny: a success is a leak")
	flags.DurationVar(&o.delay, "delay", 0, "time before the first connection: other nodes learn of a new pod a moment after it starts")
	flags.DurationVar(&o.interval, "interval", 20*time.Millisecond, "time between two new connections to each target")
	flags.DurationVar(&o.timeout, "timeout", 3*time.Second, "how long a connection may take until it counts as failed")
	flags.DurationVar(&o.duration, "duration", 0, "when to end; 0: with SIGTERM or SIGINT")
	flags.DurationVar(&o.maxGap, "max-gap", 0, "longest time without success to an allowed target; 0: any; with a longer one the exit status is 1")
	flags.IntVar(&o.maxFailed, "max-failed", -1, "how many connections to each allowed target may fail; -1: any; with more the exit status is 1")
	return o
}

// validate returns what is wrong with the options.
func (o *options) validate() error {
	switch {
	case len(o.allowed)+len(o.denied) == 0:
		return errors.New("nothing to probe: -allowed or -denied is required")
	case o.delay < 0:
		return fmt.Errorf("-delay %s: must not be negative", o.delay)
	case o.interval <= 0:
		return fmt.Errorf("-interval %s: must be more than 0", o.interval)
	case o.timeout <= 0:
		return fmt.Errorf("-timeout %s: must be more than 0", o.timeout)
	case o.duration < 0:
		return fmt.Errorf("-duration %s: must not be negative", o.duration)
	case o.maxGap < 0:
		return fmt.Errorf("-max-gap %s: must not be negative", o.maxGap)
	}
	return nil
}

// probeAndReport probes until the time is over and prints the report.
func probeAndReport(ctx context.Context, out io.Writer, o *options) error {
	if err := o.validate(); err != nil {
		return err
	}
	targets, err := parseTargets(ctx, o.allowed, false, lookup)
	if err != nil {
		return err
	}
	denied, err := parseTargets(ctx, o.denied, true, lookup)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(o.delay):
	}
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	r := probe(ctx, append(targets, denied...), o.interval, o.timeout)
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return err
	}
	if !r.asExpected(o.maxGap, o.maxFailed) {
		return errNotAsExpected
	}
	return nil
}

// probe connects to every target once in an interval, at least once, until the context
// ends. It waits for the connections that are still open then.
func probe(ctx context.Context, targets []target, interval, timeout time.Duration) report {
	r := report{Start: time.Now()}
	records := make([]*record, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		records[i] = newRecord(r.Start)
		wg.Go(func() { probeTarget(ctx, t, interval, timeout, records[i]) })
	}
	wg.Wait()
	r.End = time.Now()
	for i, t := range targets {
		r.Targets = append(r.Targets, records[i].result(t, interval))
	}
	return r
}

// probeTarget does not wait for one connection before it opens the next.
func probeTarget(ctx context.Context, t target, interval, timeout time.Duration, into *record) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var wg sync.WaitGroup
	for ended := false; !ended; {
		start := time.Now()
		wg.Go(func() {
			err := attempt(t, start.Add(timeout))
			into.add(start, time.Now(), err)
		})
		select {
		case <-ctx.Done():
			ended = true
		case <-ticker.C:
		}
	}
	into.end(time.Now())
	wg.Wait()
}

// attempt opens a connection from a new port, sends some bytes and waits until they
// come back. With SCTP it waits for the INIT ACK.
func attempt(t target, deadline time.Time) error {
	switch t.protocol {
	case "icmp":
		return ping(t.address.Addr(), deadline)
	case "sctp":
		return associate(t.address, deadline)
	}
	conn, err := dial(t, deadline, 0)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	sent := []byte(conn.LocalAddr().String())
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	received := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, received); err != nil {
		return err
	}
	if string(received) != string(sent) {
		return fmt.Errorf("received %q, sent %q", received, sent)
	}
	return nil
}

// dial opens a connection from a port, 0 for one that the kernel chooses.
func dial(t target, deadline time.Time, from int) (net.Conn, error) {
	dialer := net.Dialer{Deadline: deadline, LocalAddr: &net.TCPAddr{Port: from}}
	if t.protocol == "udp" {
		dialer.LocalAddr = &net.UDPAddr{Port: from}
	}
	conn, err := dialer.Dial(t.protocol, t.address.String())
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		// A reset leaves no port in TIME_WAIT.
		if err := tcp.SetLinger(0); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

// kindOf returns under what a failure is counted.
func kindOf(err error) string {
	var timed interface{ Timeout() bool }
	switch {
	case errors.As(err, &timed) && timed.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOPROTOOPT), errors.Is(err, syscall.EPROTO): // the latter of ICMP: no such protocol
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return "reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "unreachable"
	}
	return "other"
}
