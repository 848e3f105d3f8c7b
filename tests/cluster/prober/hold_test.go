package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// holding is a prober that holds connections.
type holding struct {
	t       *testing.T
	orders  io.WriteCloser
	answers *json.Decoder
	ended   chan error
}

func startHolding(t *testing.T) *holding {
	in, orders := io.Pipe()
	answers, out := io.Pipe()
	h := &holding{t, orders, json.NewDecoder(answers), make(chan error, 1)}
	go func() { h.ended <- run(context.Background(), in, out, []string{"hold"}) }()
	return h
}

func (h *holding) ask(format string, args ...any) answer {
	h.t.Helper()
	if _, err := fmt.Fprintf(h.orders, format+"\n", args...); err != nil {
		h.t.Fatal(err)
	}
	var a answer
	if err := h.answers.Decode(&a); err != nil {
		h.t.Fatal(err)
	}
	return a
}

// A connection is held until the input ends. Its silence begins when the other end stops answering.
func TestHold(t *testing.T) {
	h := startHolding(t)
	tcp, accepted := answerUntilClosed(t)
	udp := startServer(t, "127.0.0.1")

	if a := h.ask(`{"id": 1, "target": "tcp://%s", "milliseconds": 60000}`, tcp); a.Failure != "" {
		t.Errorf("TCP: got %+v", a)
	}
	if a := h.ask(`{"id": 2, "target": "udp://%s", "milliseconds": 60000}`, udp); a.Failure != "" {
		t.Errorf("UDP: got %+v", a)
	}
	(<-accepted).Close()
	const long = 500 // milliseconds, 25 times the interval
	for h.ask(`{"id": 1}`).Silent < long {
	}

	if a := h.ask(`{"id": 2}`); a.Failure != "" || a.Silent >= long {
		t.Errorf("UDP: got %+v", a)
	}
	h.orders.Close()
	if err := <-h.ended; err != nil {
		t.Error(err)
	}
}

// A connection begins at the port that its order names, here one that is in use.
func TestHoldFromAPort(t *testing.T) {
	h := startHolding(t)
	server := startServer(t, "127.0.0.1")
	taken, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	a := h.ask(`{"id": 1, "target": "udp://%s", "milliseconds": 60000, "sourcePort": %d}`, server, taken.LocalAddr().(*net.UDPAddr).Port)

	if !strings.Contains(a.Error, "address already in use") {
		t.Errorf("got %+v", a)
	}
	h.orders.Close()
	if err := <-h.ended; err != nil {
		t.Error(err)
	}
}

// answerUntilClosed serves one connection, which is sent on accepted, and sends back what it gets.
func answerUntilClosed(t *testing.T) (address net.Addr, accepted <-chan net.Conn) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	conns := make(chan net.Conn, 1)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			conns <- conn
			_, _ = io.Copy(conn, conn)
		}
	}()
	return listener.Addr(), conns
}

func TestWhatCannotBeHeld(t *testing.T) {
	h := startHolding(t)
	for _, c := range []struct{ order, want string }{
		{fmt.Sprintf(`{"id": 1, "target": "tcp://%s", "milliseconds": 60000}`, closedPort(t)), "refused"},
		{fmt.Sprintf(`{"id": 1, "target": "udp://%s", "milliseconds": 50}`, silentPort(t)), "timeout"},
		{`{"id": 1, "target": "icmp://127.0.0.1", "milliseconds": 50}`, "other"},
		{`{"id": 1, "target": "sctp://127.0.0.1:80", "milliseconds": 50}`, "other"},
		{`{"id": 1, "target": "tcp://name:80", "milliseconds": 50}`, "other"},
		{`{"id": 1}`, "other"},
	} {
		if a := h.ask("%s", c.order); a.Failure != c.want || a.ID != 1 {
			t.Errorf("%s: got %+v, want %s", c.order, a, c.want)
		}
	}
	h.orders.Close()
	if err := <-h.ended; err != nil {
		t.Error(err)
	}
}
