package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// tried returns the failures by the ID of what was tried.
func tried(t *testing.T, args []string, lines ...string) map[int]string {
	t.Helper()
	var out strings.Builder
	in := io.NopCloser(strings.NewReader(strings.Join(lines, "\n")))
	if err := run(context.Background(), in, &out, append([]string{"try"}, args...)); err != nil {
		t.Fatal(err)
	}
	failures := map[int]string{}
	for line := range strings.Lines(out.String()) {
		var a answer
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if _, twice := failures[a.ID]; twice {
			t.Errorf("%d is answered twice", a.ID)
		}
		failures[a.ID] = a.Failure
	}
	return failures
}

func TestEachLineIsTried(t *testing.T) {
	open, closed := startServer(t, "127.0.0.1"), closedPort(t)
	silent := silentPort(t)
	lines := []string{
		fmt.Sprintf(`{"id": 1, "target": "tcp://%s", "milliseconds": 60000}`, open),
		fmt.Sprintf(`{"id": 2, "target": "udp://%s", "milliseconds": 60000}`, open),
		fmt.Sprintf(`{"id": 3, "target": "tcp://%s", "milliseconds": 60000}`, closed),
		fmt.Sprintf(`{"id": 4, "target": "udp://%s", "milliseconds": 50}`, silent),
		`{"id": 5, "target": "tcp://name:80", "milliseconds": 60000}`,
		`{"id": 6, "target": "80", "milliseconds": 60000}`,
	}
	want := map[int]string{1: "", 2: "", 3: "refused", 4: "timeout", 5: "other", 6: "other"}
	for _, args := range [][]string{nil, {"-at-once=1"}} {
		if got := tried(t, args, lines...); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%v: got %v, want %v", args, got, want)
		}
	}
}

// silentPort returns a port on which nothing answers.
func silentPort(t *testing.T) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

// What is tried is answered before the input ends: it is read from a program that waits
// for the answers.
func TestAnswersDoNotWaitForTheEnd(t *testing.T) {
	in, orders := io.Pipe()
	answers, out := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(context.Background(), in, out, []string{"try"}) }()
	decoder := json.NewDecoder(answers)
	for i := range 3 {
		fmt.Fprintf(orders, `{"id": %d, "target": "tcp://%s", "milliseconds": 60000}`+"\n", i, closedPort(t))
		var a answer
		if err := decoder.Decode(&a); err != nil || a.ID != i || a.Failure != "refused" {
			t.Errorf("got %+v, %v", a, err)
		}
	}
	orders.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestASignalEndsTry(t *testing.T) {
	in, _ := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := run(ctx, in, io.Discard, []string{"try"}); err != nil {
		t.Error(err)
	}
}

func TestOtherInputThanJSON(t *testing.T) {
	err := run(context.Background(), io.NopCloser(strings.NewReader("tcp://10.0.0.1:80\n")), io.Discard, []string{"try"})
	if err == nil || !strings.HasPrefix(err.Error(), "read what to try: ") {
		t.Errorf("got %v", err)
	}
}
