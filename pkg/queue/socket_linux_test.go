package queue

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newPair returns a socket and the descriptor of what sends to it.
func newPair(t *testing.T) (s *socket, sender int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	s = &socket{fd: fds[0], event: event}
	t.Cleanup(func() { s.Close(); unix.Close(fds[1]) })
	return s, fds[1]
}

// receive returns how many of the datagrams that were sent one Receive returns.
func receive(t *testing.T, s *socket, sender, sent int, deadline time.Time) int {
	t.Helper()
	for range sent {
		if _, err := unix.Write(sender, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	n, err := s.Receive([]Message{{Buf: make([]byte, 8)}, {Buf: make([]byte, 8)}, {Buf: make([]byte, 8)}}, deadline)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Whether the socket lets datagrams gather or not, it returns what is there, keeps
// to its deadline and can be interrupted.
func TestASocketReturnsWhatIsThere(t *testing.T) {
	past, never := time.Unix(1, 0), time.Time{}
	for _, before := range []int{0, 1, 3} {
		s, sender := newPair(t)
		if before > 0 {
			if n := receive(t, s, sender, before, never); n != before {
				t.Errorf("%d datagrams were sent and %d received", before, n)
			}
		}
		if n := receive(t, s, sender, 0, past); n != 0 {
			t.Errorf("after %d: %d datagrams when none was sent", before, n)
		}
		if n := receive(t, s, sender, 2, past); n != 2 {
			t.Errorf("after %d: %d datagrams past the deadline, want 2", before, n)
		}
		s.Interrupt()
		if n := receive(t, s, sender, 0, never); n != 0 {
			t.Errorf("after %d: %d datagrams when interrupted", before, n)
		}
		if n := receive(t, s, sender, 2, never); n != 2 {
			t.Errorf("after %d: %d datagrams after the interruption, want 2", before, n)
		}
	}
}

func TestReceivingDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	s, sender := newPair(t)
	ms := []Message{{Buf: make([]byte, 8)}, {Buf: make([]byte, 8)}}
	past := time.Unix(1, 0)
	allocs := testing.AllocsPerRun(100, func() {
		for range 2 {
			_, _ = unix.Write(sender, []byte("x"))
		}
		for range 2 {
			if _, err := s.Receive(ms, past); err != nil {
				t.Fatal(err)
			}
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}
