package main

import (
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// inNamespace moves the test to a network namespace of its own in which every group may ping
// and only loopback is up.
func inNamespace(t *testing.T) {
	t.Helper()
	labtest.Need(t)
	runtime.LockOSThread() // for good: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		t.Fatal(err)
	}
	sysctl(t, "net/ipv4/ping_group_range", "0 2147483647")
}

func sysctl(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

func TestPing(t *testing.T) {
	inNamespace(t)
	for address, want := range map[string]string{"127.0.0.1": "", "::1": "", "192.0.2.1": "unreachable", "2001:db8::1": "unreachable"} {
		failure := ""

		err := ping(netip.MustParseAddr(address), time.Now().Add(long))

		if err != nil {
			failure = kindOf(err)
		}
		if failure != want {
			t.Errorf("%s: got %q, %v, want %q", address, failure, err, want)
		}
	}
}

func TestPingWithoutAnswer(t *testing.T) {
	inNamespace(t)
	sysctl(t, "net/ipv4/icmp_echo_ignore_all", "1")

	err := ping(netip.MustParseAddr("127.0.0.1"), time.Now().Add(50*time.Millisecond))

	if err == nil || kindOf(err) != "timeout" {
		t.Errorf("got %v, want a timeout", err)
	}
}

// Where no group may ping, the attempt could not be made: that is not a denial.
func TestPingWithoutTheRight(t *testing.T) {
	inNamespace(t)
	sysctl(t, "net/ipv4/ping_group_range", "1 0")

	err := ping(netip.MustParseAddr("127.0.0.1"), time.Now().Add(long))

	if err == nil || kindOf(err) != "other" {
		t.Errorf("got %v of kind %s, want other", err, kindOf(err))
	}
}
