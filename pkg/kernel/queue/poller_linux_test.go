package queue

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sockets are sockets that a test sends to.
type sockets struct {
	t       *testing.T
	poller  *poller
	sockets []Socket
	senders []int // descriptors
}

func newSockets(t *testing.T, n int) *sockets {
	t.Helper()
	p, err := Host{}.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	s := &sockets{t: t, poller: p.(*poller)}
	t.Cleanup(func() { p.Close() })
	for range n {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		sock := &socket{fd: fds[0]}
		t.Cleanup(func() { sock.Close(); unix.Close(fds[1]) })
		s.sockets, s.senders = append(s.sockets, sock), append(s.senders, fds[1])
	}
	return s
}

func (s *sockets) send(i, n int) {
	s.t.Helper()
	for range n {
		if _, err := unix.Write(s.senders[i], []byte("x")); err != nil {
			s.t.Fatal(err)
		}
	}
}

// wantNext waits once, and expects n datagrams on the i-th socket, or none at all if i is -1.
func (s *sockets) wantNext(deadline time.Time, i, n int) {
	s.t.Helper()
	got, err := s.poller.Wait(s.sockets, deadline)
	if err != nil || got != i {
		s.t.Fatalf("socket %d, %v; want socket %d", got, err, i)
	}
	if i < 0 {
		return
	}
	batch := newBatch(8)[:4]
	if received, err := s.sockets[i].Receive(batch); received != n || err != nil {
		s.t.Errorf("received %d datagrams of socket %d, %v; want %d", received, i, err, n)
	}
}

var past, never = time.Unix(1, 0), time.Time{}

// The poller finds arrived packets, meets its deadline and can be interrupted, whether or not packets
// gather.
func TestPollerFindsWhatHasArrived(t *testing.T) {
	for _, before := range []int{0, 1, 3, 4} {
		s := newSockets(t, 1)
		if before > 0 {
			s.send(0, before)
			s.wantNext(never, 0, before)
		}
		s.wantNext(past, -1, 0)
		s.send(0, 2)
		s.wantNext(past, 0, 2)
		s.poller.Interrupt()
		s.wantNext(never, -1, 0)
		s.send(0, 2)
		s.wantNext(never, 0, 2)
		s.wantNext(never, -1, 0)
	}
}

// The poller finds the readable socket with the highest priority, whichever packets gather.
func TestPollerPrefersTheFirstSocket(t *testing.T) {
	for last := range 3 {
		s := newSockets(t, 3)
		s.send(last, 2)
		s.wantNext(never, last, 2)
		for i := range 3 {
			s.send(i, 2)
		}
		for i := range 3 {
			s.wantNext(never, i, 2)
		}
		s.wantNext(past, -1, 0)
	}
}

func TestPollerIgnoresMissingSockets(t *testing.T) {
	s := newSockets(t, 3)
	s.sockets[0], s.sockets[1] = nil, nil
	s.wantNext(past, -1, 0)
	s.send(0, 1)
	s.send(2, 1)
	s.wantNext(never, 2, 1)
	s.sockets = nil
	s.wantNext(past, -1, 0)
}

// Wait leaves errors of a socket to Receive.
func TestPollerLeavesErrorsToReceive(t *testing.T) {
	s := newSockets(t, 1)
	s.sockets = append(s.sockets, &socket{fd: 1 << 30}) // is not open
	if i, err := s.poller.Wait(s.sockets, never); i != 1 || err != nil {
		t.Fatalf("socket %d, %v; want socket 1", i, err)
	}
	if _, err := s.sockets[1].Receive(newBatch(8)); err == nil {
		t.Error("received from a socket that is not open")
	}
}

func TestReceivingDoesNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	s := newSockets(t, 2)
	batch := newBatch(8)
	allocs := testing.AllocsPerRun(100, func() {
		for range 2 {
			_, _ = unix.Write(s.senders[1], []byte("x"))
		}
		i, err := s.poller.Wait(s.sockets, never)
		if i != 1 || err != nil {
			t.Fatalf("socket %d, %v", i, err)
		}
		if _, err := s.sockets[i].Receive(batch); err != nil {
			t.Fatal(err)
		}
		if _, err := s.poller.Wait(s.sockets, past); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// A descriptor's number may be another file's as soon as it is closed.
func TestASecondCloseClosesNothing(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	sock := &socket{fd: fds[0]}
	if err := sock.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Dup3(fds[1], fds[0], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	if err := sock.Close(); err == nil {
		t.Error("no error says that the socket was closed before")
	}
	if _, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0); err != nil {
		t.Errorf("another file was closed: %v", err)
	}
}
