package load

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// drainTimeout limits the wait for connections that were begun in time. A lost SYN is
// retransmitted after one second and again two seconds later.
const drainTimeout = 4 * time.Second

// Clients open TCP connections: each opens one, resets it, and opens the next.
type Clients struct {
	Count  int
	To     func() netip.AddrPort // destination of the next connection
	Pause  time.Duration         // between the beginnings of two connections of one client; only for Count 1
	During time.Duration         // how long to begin connections
}

// Connections are what Connect has measured.
type Connections struct {
	Took   []time.Duration // until each was established
	InTime int             // number of connections established within Clients.During
}

// Connect makes clients connect from a namespace, and waits for connections that were begun
// in time. It is an error if one is refused, or not established after four more seconds.
func Connect(netns string, clients Clients) (Connections, error) {
	c := &connector{Clients: clients, began: make(map[int]time.Time)}
	err := Inside(netns, func() error {
		defer c.close()
		return c.run()
	})
	if err != nil {
		return Connections{}, fmt.Errorf("connect: %w", err)
	}
	return c.result, nil
}

// connector waits for all its sockets on one thread, so that the clients cost as little as
// possible.
type connector struct {
	Clients
	epoll  int
	began  map[int]time.Time // by socket
	last   time.Time         // beginning of the latest connection
	end    time.Time         // no connection begins later
	result Connections
}

func (c *connector) run() (err error) {
	if c.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	c.end = time.Now().Add(c.During)
	for range c.Count {
		if err := c.begin(); err != nil {
			return err
		}
	}
	events := make([]unix.EpollEvent, c.Count)
	for len(c.began) > 0 {
		left := time.Until(c.end.Add(drainTimeout))
		if left <= 0 {
			return fmt.Errorf("%d connections are not established %s after they were begun", len(c.began), drainTimeout)
		}
		n, err := unix.EpollWait(c.epoll, events, int(left.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		now := time.Now()
		for _, event := range events[:max(n, 0)] {
			if err := c.finish(int(event.Fd), now); err != nil {
				return err
			}
			time.Sleep(time.Until(c.last.Add(c.Pause)))
			if time.Now().Before(c.end) {
				if err := c.begin(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// begin begins a connection.
func (c *connector) begin() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	to := sockaddr(c.To())
	c.last = time.Now()
	c.began[fd] = c.last
	if err := resetAtClose(fd); err != nil {
		return err
	}
	if err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)}); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if err := unix.Connect(fd, to); err != unix.EINPROGRESS {
		return os.NewSyscallError("connect", err)
	}
	return nil
}

// finish records how long a connection took and resets it.
func (c *connector) finish(fd int, now time.Time) error {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err != nil {
		return os.NewSyscallError("connect", err)
	}
	c.result.Took = append(c.result.Took, now.Sub(c.began[fd]))
	if now.Before(c.end) {
		c.result.InTime++
	}
	delete(c.began, fd)
	return os.NewSyscallError("close", unix.Close(fd))
}

// close closes all pending connections.
func (c *connector) close() {
	for fd := range c.began {
		unix.Close(fd)
	}
	unix.Close(c.epoll)
}

// resetAtClose makes close send a reset, so that no port stays in use for a minute and
// neither end keeps state.
func resetAtClose(fd int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}
