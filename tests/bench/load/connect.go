package load

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Connect opens TCP connections from a namespace for the given time: each client
// opens one, resets it, and opens the next. It returns how long each took to be
// established. Connections that are pending at the end are closed.
func Connect(netns string, to netip.AddrPort, clients int, during time.Duration) ([]time.Duration, error) {
	c := &connector{to: sockaddr(to), began: make(map[int]time.Time)}
	err := Inside(netns, func() error {
		defer c.close()
		return c.run(clients, during)
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return c.took, nil
}

// connector waits for all its sockets on one thread, so that the clients cost as
// little as they can.
type connector struct {
	to    unix.Sockaddr
	epoll int
	began map[int]time.Time // by socket
	took  []time.Duration
}

func (c *connector) run(clients int, during time.Duration) (err error) {
	if c.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	end := time.Now().Add(during)
	for range clients {
		if err := c.begin(); err != nil {
			return err
		}
	}
	events := make([]unix.EpollEvent, clients)
	for left := during; left > 0; left = time.Until(end) {
		n, err := unix.EpollWait(c.epoll, events, int(left.Milliseconds())+1)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		now := time.Now()
		for _, event := range events[:max(n, 0)] {
			if err := c.finish(int(event.Fd), now); err != nil {
				return err
			}
			if err := c.begin(); err != nil {
				return err
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
	c.began[fd] = time.Now()
	if err := resetAtClose(fd); err != nil {
		return err
	}
	if err := unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)}); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	if err := unix.Connect(fd, c.to); err != unix.EINPROGRESS {
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
	c.took = append(c.took, now.Sub(c.began[fd]))
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

// resetAtClose closes the connection with a reset, so that no port stays in use for a
// minute and no end keeps state.
func resetAtClose(fd int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}
