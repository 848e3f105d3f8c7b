package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// long is a time that no test waits for.
const long = time.Minute

// startServer serves on a free port of an address until the test ends.
func startServer(t *testing.T, host string) netip.AddrPort {
	t.Helper()
	return startServerOf(t, host, false)
}

// startServerOf is startServer, withSCTP or not.
func startServerOf(t *testing.T, host string, withSCTP bool) netip.AddrPort {
	t.Helper()
	var s *server
	var err error
	// A port that is free for TCP may be taken for UDP.
	for range 20 {
		if s, err = listen(net.JoinHostPort(host, "0"), withSCTP); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return netip.MustParseAddrPort(s.tcp.Addr().String())
}

// closedPort returns a port on which nothing listens, and nothing will.
func closedPort(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(address.(*syscall.SockaddrInet4).Port))
}

func TestAttemptsGetTheirBytesBack(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		for _, protocol := range []string{"tcp", "udp"} {
			t.Run(protocol+" "+host, func(t *testing.T) {
				if err := attempt(target{protocol: protocol, address: startServer(t, host)}, time.Now().Add(long)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestAClosedPortIsRefused(t *testing.T) {
	err := attempt(target{protocol: "tcp", address: closedPort(t)}, time.Now().Add(long))
	if kindOf(err) != "refused" {
		t.Errorf("%v is of the kind %s", err, kindOf(err))
	}
}

// A server that answers with other bytes is not the one that was meant.
func TestOtherBytesAreAFailure(t *testing.T) {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() {
		buffer := make([]byte, 1500)
		if n, from, err := conn.ReadFrom(buffer); err == nil {
			_, _ = conn.WriteTo(bytes.ToUpper([]byte(strings.Repeat("x", n))), from)
		}
	}()
	to := target{protocol: "udp", address: netip.MustParseAddrPort(conn.LocalAddr().String())}
	if err := attempt(to, time.Now().Add(long)); err == nil || kindOf(err) != "other" {
		t.Errorf("got %v", err)
	}
}

func TestKinds(t *testing.T) {
	for want, err := range map[string]error{
		"timeout":     &net.OpError{Err: os.ErrDeadlineExceeded},
		"refused":     &net.OpError{Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		"reset":       io.EOF,
		"unreachable": &net.OpError{Err: os.NewSyscallError("connect", syscall.EHOSTUNREACH)},
		"other":       errors.New("another"),
	} {
		t.Run(want, func(t *testing.T) {
			if got := kindOf(err); got != want {
				t.Errorf("%v: got %s, want %s", err, got, want)
			}
		})
	}
}

// A deadline that is over when a connection is dialed is a timeout as well.
func TestATimeoutWhileDialing(t *testing.T) {
	err := attempt(target{protocol: "tcp", address: closedPort(t)}, time.Now().Add(-time.Second))
	if kindOf(err) != "timeout" {
		t.Errorf("%v is of the kind %s", err, kindOf(err))
	}
}

// Everything that succeeds to a denied target is a leak.
func TestProbe(t *testing.T) {
	open, closed := startServer(t, "127.0.0.1"), closedPort(t)
	// It ends when the counting server has been reached ten times.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	counting, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer counting.Close()
	go func() {
		for count := 1; ; count++ {
			conn, err := counting.Accept()
			if err != nil {
				return
			}
			go echo(conn)
			if count == 10 {
				cancel()
			}
		}
	}()

	r := probe(ctx, []target{
		{name: "counting", protocol: "tcp", address: netip.MustParseAddrPort(counting.Addr().String())},
		{name: "open", protocol: "udp", address: open},
		{name: "leaking", protocol: "tcp", address: open, denied: true},
		{name: "closed", protocol: "tcp", address: closed, denied: true},
	}, time.Millisecond, long)

	for i, test := range []struct {
		expected string
		succeeds bool
		leaks    bool
	}{{"allowed", true, false}, {"allowed", true, false}, {"denied", true, true}, {"denied", false, false}} {
		got := r.Targets[i]
		t.Run(got.Target, func(t *testing.T) {
			if got.Expected != test.expected {
				t.Errorf("expected to be %s", got.Expected)
			}
			if got.Attempts == 0 || got.Attempts != got.Succeeded+got.Failed {
				t.Errorf("%d attempts, %d succeeded, %d failed", got.Attempts, got.Succeeded, got.Failed)
			}
			if succeeded := got.Failed == 0; succeeded != test.succeeds {
				t.Errorf("%d of %d attempts failed: %s", got.Failed, got.Attempts, got.FirstError)
			}
			if leaks := got.Leaks > 0; leaks != test.leaks || leaks && (got.Leaks != got.Succeeded || got.FirstLeak == nil || got.LastLeak == nil) {
				t.Errorf("%d leaks, %d succeeded", got.Leaks, got.Succeeded)
			}
		})
	}
	if r.Targets[0].Attempts < 10 {
		t.Errorf("%d attempts after ten connections", r.Targets[0].Attempts)
	}
}

func TestGapsAndLatencies(t *testing.T) {
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	type try struct {
		start, end int
		err        error
	}
	for name, test := range map[string]struct {
		tries []try
		ended int
		want  result
	}{
		"no success": {
			tries: []try{{0, 300, os.ErrDeadlineExceeded}}, ended: 1000,
			want: result{Attempts: 1, Failed: 1, Failures: map[string]int{"timeout": 1}, FirstError: "i/o timeout",
				LongestGap: 1000, Gaps: []gap{{at(0), 1000}}},
		},
		"no gap": {
			tries: []try{{0, 1, nil}, {20, 22, nil}, {40, 41, nil}}, ended: 60,
			want: result{Attempts: 3, Succeeded: 3, First: new(1.0), LongestGap: 21, Latency: &latency{1, 2, 2}},
		},
		// The second is begun within the gap and succeeds with its second packet.
		"a gap": {
			tries: []try{{0, 1, nil}, {20, 1021, nil}, {40, 340, io.EOF}, {501, 502, nil}}, ended: 1030,
			want: result{Attempts: 4, Succeeded: 3, Failed: 1, Failures: map[string]int{"reset": 1}, FirstError: "EOF",
				First: new(1.0), LongestGap: 519, Gaps: []gap{{at(502), 519}, {at(1), 501}}, Latency: &latency{1, 1001, 1001}},
		},
		// A gap in which nothing was tried any more would be none.
		"the last success after the end": {
			tries: []try{{20, 300, nil}, {0, 1, nil}}, ended: 240,
			want: result{Attempts: 2, Succeeded: 2, First: new(1.0), LongestGap: 239, Gaps: []gap{{at(1), 239}}, Latency: &latency{1, 280, 280}},
		},
		"the first fails": {
			tries: []try{{20, 21, nil}, {0, 300, io.EOF}}, ended: 40,
			want: result{Attempts: 2, Succeeded: 1, Failed: 1, Failures: map[string]int{"reset": 1}, FirstError: "EOF",
				LongestGap: 21, Latency: &latency{1, 1, 1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord(begun)
			for _, try := range test.tries {
				r.add(at(try.start), at(try.end), try.err)
			}
			r.end(at(test.ended))
			test.want.Target, test.want.Expected = "x", "allowed"
			if diff := cmp.Diff(test.want, r.result(target{name: "x"}, 20*time.Millisecond), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A time that is over at once is enough for one attempt.
func TestAtLeastOneAttempt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	r := probe(ctx, []target{{protocol: "tcp", address: startServer(t, "127.0.0.1")}}, long, long)
	if got := r.Targets[0]; got.Attempts != 1 || got.Succeeded != 1 || got.First == nil {
		t.Errorf("%+v", got)
	}
}

func TestReportsThatAreNotAsExpected(t *testing.T) {
	allowed := result{Expected: "allowed", Succeeded: 10, Failed: 2, LongestGap: 600}
	for name, test := range map[string]struct {
		target    result
		maxGap    time.Duration
		maxFailed int
		want      bool
	}{
		"any gap, any failures": {allowed, 0, -1, true},
		"a gap that may be":     {allowed, 600 * time.Millisecond, -1, true},
		"a gap too long":        {allowed, 599 * time.Millisecond, -1, false},
		"failures that may be":  {allowed, 0, 2, true},
		"failures too many":     {allowed, 0, 1, false},
		"never reached":         {result{Expected: "allowed"}, 0, -1, false},
		"a leak":                {result{Expected: "denied", Leaks: 1}, 0, -1, false},
		"denied":                {result{Expected: "denied", Failed: 10}, time.Second, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (report{Targets: []result{test.target}}).asExpected(test.maxGap, test.maxFailed); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestTargets(t *testing.T) {
	look := func(_ context.Context, name string) ([]netip.Addr, error) {
		if name != "web.example" {
			return nil, errors.New("no such host")
		}
		return []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fd00::1")}, nil
	}
	for _, test := range []struct {
		url  string
		want []string
		err  string
	}{
		{url: "tcp://10.0.0.1:80", want: []string{"tcp://10.0.0.1:80"}},
		{url: "udp://[fd00::1]:53", want: []string{"udp://[fd00::1]:53"}},
		{url: "tcp://web.example:80", want: []string{"tcp://web.example:80 10.0.0.1", "tcp://web.example:80 fd00::1"}},
		{url: "icmp://[fd00::1]", want: []string{"icmp://[fd00::1]"}},
		{url: "icmp://10.0.0.1:80", err: `target "icmp://10.0.0.1:80": want icmp://HOST`},
		{url: "tcp://web.other:80", err: `target "tcp://web.other:80": no such host`},
		{url: "sctp://[fd00::1]:80", want: []string{"sctp://[fd00::1]:80"}},
		{url: "sctp://10.0.0.1", err: `target "sctp://10.0.0.1": want sctp://HOST:PORT`},
		{url: "dccp://10.0.0.1:80", err: `target "dccp://10.0.0.1:80": want tcp://HOST:PORT, udp://HOST:PORT, sctp://HOST:PORT or icmp://HOST`},
		{url: "10.0.0.1", err: `target "10.0.0.1": want tcp://HOST:PORT, udp://HOST:PORT, sctp://HOST:PORT or icmp://HOST`},
		{url: "tcp://10.0.0.1", err: `target "tcp://10.0.0.1": want tcp://HOST:PORT`},
		{url: "tcp://10.0.0.1:0", err: `target "tcp://10.0.0.1:0": want tcp://HOST:PORT`},
		{url: "tcp://10.0.0.1:70000", err: `target "tcp://10.0.0.1:70000": want tcp://HOST:PORT`},
		{url: "tcp://:80", err: `target "tcp://:80": want tcp://HOST:PORT`},
		{url: "tcp://10.0.0.1:80/path", err: `target "tcp://10.0.0.1:80/path": want tcp://HOST:PORT`},
	} {
		t.Run(test.url, func(t *testing.T) {
			targets, err := parseTargets(context.Background(), []string{test.url}, false, look)
			if got := fmt.Sprint(err); err != nil && got != test.err || err == nil && test.err != "" {
				t.Errorf("error %v, want %q", err, test.err)
			}
			var names []string
			for _, target := range targets {
				names = append(names, target.name)
			}
			if diff := cmp.Diff(test.want, names); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCommandLine(t *testing.T) {
	for _, test := range []struct{ args, err string }{
		{"", "no command"},
		{"watch", `unknown command "watch"`},
		{"probe", "nothing to probe: -allowed or -denied is required"},
		{"probe -allowed tcp://10.0.0.1:80 -delay -1s", "-delay -1s: must not be negative"},
		{"probe -allowed tcp://10.0.0.1:80 -interval 0s", "-interval 0s: must be more than 0"},
		{"probe -allowed tcp://10.0.0.1:80 -timeout -1s", "-timeout -1s: must be more than 0"},
		{"probe -allowed tcp://10.0.0.1:80 -duration -1s", "-duration -1s: must not be negative"},
		{"probe -allowed tcp://10.0.0.1:80 -max-gap -1s", "-max-gap -1s: must not be negative"},
		{"probe -denied 10.0.0.1", `target "10.0.0.1"`},
		{"serve -listen nowhere", "listen tcp"},
		{"try -at-once 0", "-at-once 0: must be at least 1"},
		{"probe more", `unexpected argument "more"`},
	} {
		t.Run(test.args, func(t *testing.T) {
			err := run(context.Background(), http.NoBody, io.Discard, strings.Fields(test.args))
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("got %v, want %s", err, test.err)
			}
		})
	}
}

func TestVersionAndHelp(t *testing.T) {
	for arg, want := range map[string]string{"version": "prober, version ", "--version": "prober, version ", "--help": usage} {
		t.Run(arg, func(t *testing.T) {
			var out strings.Builder
			if err := run(t.Context(), nil, &out, []string{arg}); err != nil || !strings.HasPrefix(out.String(), want) {
				t.Errorf("got %q, %v, want %q", out.String(), err, want)
			}
		})
	}
}

// A prober that is ended prints its report, with an error if that is not as expected.
func TestTheReportIsJSON(t *testing.T) {
	server, closed := startServer(t, "127.0.0.1"), closedPort(t)
	for name, test := range map[string]struct {
		args []string
		want error
	}{
		"as expected": {[]string{"probe", "-duration", "50ms", "-timeout", "1m", "-allowed", "tcp://" + server.String(), "-denied", "tcp://" + closed.String()}, nil},
		"a leak":      {[]string{"probe", "-duration", "50ms", "-timeout", "1m", "-denied", "udp://" + server.String()}, errNotAsExpected},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := run(context.Background(), http.NoBody, &out, test.args); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
			var r report
			if err := json.Unmarshal(out.Bytes(), &r); err != nil || len(r.Targets) == 0 || r.Targets[0].Attempts == 0 {
				t.Errorf("%v: %s", err, &out)
			}
		})
	}
}

// A server of every address answers from the address that a client has asked.
func TestAnswersComeFromTheAskedAddress(t *testing.T) {
	every, everyIPv4 := startServer(t, ""), startServer(t, "0.0.0.0")
	for _, asked := range []netip.AddrPort{
		netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), every.Port()),
		netip.AddrPortFrom(netip.MustParseAddr("::1"), every.Port()),
		netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), everyIPv4.Port()),
	} {
		client, err := net.Dial("udp", asked.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}

		answer := make([]byte, 1)
		if _, err := client.Read(answer); err != nil {
			t.Errorf("%s does not answer: %v", asked, err)
		}
	}
}
