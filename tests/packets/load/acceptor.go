package load

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// backlog is larger than the number of connections that clients open while the acceptor
// does not run. The kernel limits it to net.core.somaxconn.
const backlog = 1<<16 - 1

// Acceptor accepts TCP connections and closes them without a reset, which might arrive
// before the client knows that it was accepted.
type Acceptor struct {
	fd    int
	ended chan struct{}
}

// OpenAcceptor listens inside a namespace on a port of all its IPv4 addresses.
func OpenAcceptor(netns string, port uint16) (*Acceptor, error) {
	a := &Acceptor{ended: make(chan struct{})}
	if err := Inside(netns, func() error { return a.listen(port) }); err != nil {
		return nil, fmt.Errorf("listen on port %d: %w", port, err)
	}
	go a.accept()
	return a, nil
}

func (a *Acceptor) listen(port uint16) (err error) {
	if a.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return os.NewSyscallError("socket", err)
	}
	if err = os.NewSyscallError("bind", unix.Bind(a.fd, &unix.SockaddrInet4{Port: int(port)})); err == nil {
		err = os.NewSyscallError("listen", unix.Listen(a.fd, backlog))
	}
	if err != nil {
		unix.Close(a.fd)
	}
	return err
}

func (a *Acceptor) accept() {
	defer close(a.ended)
	for {
		fd, _, err := unix.Accept4(a.fd, unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			unix.Close(fd)
		case unix.EINTR, unix.ECONNABORTED:
		default:
			return // shut down
		}
	}
}

// Close stops listening.
func (a *Acceptor) Close() error {
	err := os.NewSyscallError("shutdown", unix.Shutdown(a.fd, unix.SHUT_RDWR)) // wakes accept
	<-a.ended
	unix.Close(a.fd)
	return err
}
