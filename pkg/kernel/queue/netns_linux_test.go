package queue_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inNetNS runs the calling test again in a new process and network namespace, and reports whether this
// is that process. Everything in the namespace ends with the process.
func inNetNS(t *testing.T) bool {
	t.Helper()
	const marker = "QUEUE_TEST_IN_NETNS"
	if os.Getenv(marker) != "" {
		command(t, "ip", "link", "set", "lo", "up")
		return true
	}
	for _, tool := range []string{"ip", "iptables-nft"} {
		_, err := exec.LookPath(tool)
		skipOrFail(t, err)
	}
	runtime.LockOSThread() // the child ends with this thread (Pdeathsig)
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=50s")
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		skipOrFail(t, err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// skipOrFail ends the test if err is not nil. It skips the test if this machine cannot run it, unless
// NETNS_REQUIRED is set.
func skipOrFail(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	unsupported := errors.Is(err, errors.ErrUnsupported) || errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrPermission) ||
		errors.Is(err, syscall.EINVAL) // an emulator makes no namespaces
	if unsupported && os.Getenv("NETNS_REQUIRED") == "" {
		t.Skip(err)
	}
	t.Fatal(err)
}

func command(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// queueUDP queues packets to the UDP port to the queue numbers, in the syntax of iptables: "100" or
// "100:103".
func queueUDP(t testing.TB, port int, numbers string) {
	t.Helper()
	option := "--queue-num"
	if strings.Contains(numbers, ":") {
		option = "--queue-balance"
	}
	command(t, "iptables-nft", "-A", "OUTPUT", "-p", "udp", "--dport", fmt.Sprint(port), "-j", "NFQUEUE", option, numbers)
}

// receiver listens on any free UDP port on all addresses.
func receiver(t testing.TB) (conn *net.UDPConn, port int) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	setBuffer(t, conn, syscall.SO_RCVBUFFORCE)
	return conn, conn.LocalAddr().(*net.UDPAddr).Port
}

func sender(t testing.TB, port int) *net.UDPConn {
	t.Helper()
	return senderTo(t, "127.0.0.1", port)
}

func senderTo(t testing.TB, addr string, port int) *net.UDPConn {
	t.Helper()
	conn, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.ParseIP(addr), Port: port})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	// Packets in a queue are charged to their sender, which would otherwise have to wait for the
	// verdicts.
	setBuffer(t, conn, syscall.SO_SNDBUFFORCE)
	return conn
}

// setBuffer makes a buffer larger than any test needs.
func setBuffer(t testing.TB, conn *net.UDPConn, option int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, option, 256<<20)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func send(t testing.TB, conn *net.UDPConn, n int) {
	t.Helper()
	for i := range n {
		if _, err := fmt.Fprintf(conn, "datagram %d", i); err != nil {
			t.Fatal(err)
		}
	}
}

// received reads n datagrams and checks that there are no more.
func received(t testing.TB, conn *net.UDPConn, n int) {
	t.Helper()
	buf := make([]byte, 2048)
	for i := range n {
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := conn.Read(buf); err != nil {
			t.Fatalf("after %d of %d datagrams: %v", i, n, err)
		}
	}
	conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := conn.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("more than %d datagrams, or %v", n, err)
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(30 * time.Second); !cond(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
