package queue

import (
	"encoding/binary"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// poller waits with ppoll(2).
type poller struct {
	event  int // an eventfd that Interrupt makes readable permanently
	polled []unix.PollFd
}

// Wait implements Poller. If the last Receive returned several packets, it lets more of them
// gather before it polls: waking us costs the sender of a packet more than the rest of queueing
// it. Packets of the highest priority gather only if no more have arrived yet. Packets of a higher
// priority interrupt the gathering.
func (p *poller) Wait(sockets []Socket, deadline time.Time) (int, error) {
	if i := gathering(sockets); i >= 0 {
		now, gather := time.Now(), lowerGatherTime
		if i == 0 {
			gather = gatherTime
			if first, err := p.poll(sockets, now); first >= 0 || err != nil {
				return first, err
			}
		}
		if first, err := p.poll(sockets[:i], now.Add(gather)); first >= 0 || err != nil {
			return first, err
		}
	}
	return p.poll(sockets, deadline)
}

// gathering returns the index of the first socket whose packets should gather, -1 if there is
// none. Packets gather once after each Receive.
func gathering(sockets []Socket) int {
	first := -1
	for i := len(sockets) - 1; i >= 0; i-- {
		if s, ok := sockets[i].(*socket); ok && s.gather {
			first, s.gather = i, false
		}
	}
	return first
}

// poll waits until one of sockets is readable, and returns the index of the first one that is. It
// returns -1 after Interrupt, and at the deadline unless that is zero.
func (p *poller) poll(sockets []Socket, deadline time.Time) (int, error) {
	p.polled = append(p.polled[:0], unix.PollFd{Fd: int32(p.event), Events: unix.POLLIN})
	for _, s := range sockets {
		fd := -1 // ppoll ignores it
		if s != nil {
			fd = s.(*socket).fd
		}
		p.polled = append(p.polled, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for {
		var timeout *unix.Timespec
		if !deadline.IsZero() {
			t := unix.NsecToTimespec(int64(max(0, time.Until(deadline))))
			timeout = &t
		}
		_, err := unix.Ppoll(p.polled, timeout, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, os.NewSyscallError("ppoll", err)
		}
		if p.polled[0].Revents&unix.POLLNVAL != 0 {
			return -1, os.NewSyscallError("ppoll", unix.EBADF) // the eventfd is closed, so no ppoll would wait
		}
		for i, s := range p.polled[1:] {
			if s.Revents != 0 { // Receive returns errors of the socket
				return i, nil
			}
		}
		return -1, nil
	}
}

// Interrupt implements Poller. It retries for a second: if it failed, the worker would not stop
// until the next packet arrives.
func (p *poller) Interrupt() {
	one := binary.NativeEndian.AppendUint64(nil, 1)
	for range 1000 {
		if _, err := unix.Write(p.event, one); err == nil || err == unix.EBADF {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Close implements Poller.
func (p *poller) Close() error { return os.NewSyscallError("close", unix.Close(p.event)) }
