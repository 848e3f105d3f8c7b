package queue_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
)

// injections are system calls that strace makes fail while packets arrive, and the metrics that must
// count the failures. "when" counts the calls of each thread. The Go runtime itself makes none of
// these calls: a failed write of its own would end the process.
var injections = []struct{ inject, metric, label string }{
	{"recvmmsg:error=ENOMEM:when=3", "netpol_queue_errors_total", "receive"},
	{"recvmmsg:error=EIO:when=3..40", "netpol_queue_errors_total", "rebind"},
	{"recvmmsg:error=EBADF:when=3..40", "netpol_queue_errors_total", "rebind"},
	{"ppoll:error=ENOMEM:when=3", "netpol_queue_errors_total", "wait"},
	{"ppoll:error=EINVAL:when=3..40", "netpol_queue_errors_total", "wait"},
	{"sendto:error=ENOBUFS:when=1..3", "netpol_queue_errors_total", "send"},
	{"sendto:error=ENOMEM:when=1..3", "netpol_queue_errors_total", "send"},
	{"sendto:error=EAGAIN:when=1..40", "netpol_queue_errors_total", "rebind"},
	{"recvmmsg:error=EIO:when=1..20 socket:error=EMFILE:when=1", "netpol_queue_errors_total", "bind"},
	{"recvmmsg:error=EIO:when=1..20 sendmsg,sendto:error=ENOBUFS:when=1", "netpol_queue_errors_total", "bind"},
}

// After real failures of system calls on the packet path the queue continues to work, and no
// descriptor leaks.
func TestKernelInjectedErrors(t *testing.T) {
	if os.Getenv("HARD") == "" {
		t.Skip("needs strace; HARD=1 runs it")
	}
	_, err := exec.LookPath("strace")
	skipOrFail(t, err)
	if !inNetNS(t) {
		return
	}
	conn, port := receiver(t)
	queueUDP(t, port, "100")
	client, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}) // sends with write(2)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range injections {
		t.Run(i.inject, func(t *testing.T) {
			r := start(t, queue.Config{First: 100, Count: 1}, always(queue.Accept), queue.Config{First: 200, Count: 1})
			r.awaitBound()
			before := descriptors(t)
			detach := attachStrace(t, strings.Fields(i.inject))
			eventually(t, "the error is noticed", func() bool {
				_, _ = client.Write([]byte("x"))
				return r.metric(i.metric, i.label) > 0
			})
			detach()
			eventually(t, "the queue is bound", r.Bound)
			r.awaitEmpty("100")
			if after := descriptors(t); after != before {
				t.Errorf("%d descriptors, %d before", after, before)
			}
			drainConn(t, conn)
			for n := range 10 {
				if _, err := client.Write(fmt.Append(nil, n)); err != nil {
					t.Fatal(err)
				}
			}
			received(t, conn, 10)
			if err := r.stop(); err != nil {
				t.Errorf("Run returned %v", err)
			}
		})
	}
}

// attachStrace makes system calls of this process fail until detach is called.
func attachStrace(t *testing.T, inject []string) (detach func()) {
	t.Helper()
	args := []string{"-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(os.Getpid())}
	for _, i := range inject {
		args = append(args, "-e", "inject="+i)
	}
	cmd := exec.Command("strace", args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	detach = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(unix.SIGINT)
		_ = cmd.Wait() // strace is ended by the signal
	})
	t.Cleanup(detach)
	eventually(t, "strace is attached", func() bool {
		status, err := os.ReadFile("/proc/self/status")
		return err == nil && strings.Contains(string(status), fmt.Sprintf("TracerPid:\t%d\n", cmd.Process.Pid))
	})
	return detach
}

// descriptors counts the open files of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// drainConn reads all datagrams that have arrived.
func drainConn(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	for buf := make([]byte, 16); ; {
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}
