package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/cluster/prober/sctp"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// short is how long is waited for answers that do not come.
const short = 50 * time.Millisecond

// associated returns the kind of failure of an attempt.
func associated(t *testing.T, host string, port uint16, patience time.Duration) string {
	t.Helper()
	err := attempt(target{protocol: "sctp", address: netip.AddrPortFrom(netip.MustParseAddr(host), port)}, time.Now().Add(patience))
	if err != nil {
		t.Log(err)
		return kindOf(err)
	}
	return ""
}

func expectAssociated(t *testing.T, host string, port uint16, patience time.Duration, want string) {
	t.Helper()
	if got := associated(t, host, port, patience); got != want {
		t.Errorf("%s, port %d: got %q, want %q", host, port, got, want)
	}
}

// The kernel checks verification tags when it tracks connections.
func TestSCTP(t *testing.T) {
	inNamespace(t)
	nft(t, "input", "ct state invalid drop")
	for _, host := range []string{"127.0.0.1", "::1"} {
		server := startServerOf(t, host, true)

		expectAssociated(t, host, server.Port(), long, "")
		expectAssociated(t, host, server.Port()^1, short, "timeout")
	}
	expectAssociated(t, "192.0.2.1", 80, long, "unreachable") // there is no route
}

// A server of every address answers from the one to which the INIT was sent: another one is not
// taken for it.
func TestSCTPOfEveryAddress(t *testing.T) {
	inNamespace(t)
	server := startServerOf(t, "", true)
	for _, host := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
		expectAssociated(t, host, server.Port(), long, "")
	}
}

func TestSCTPWhereIPv6IsOff(t *testing.T) {
	inNamespace(t)
	sysctl(t, "net/ipv6/conf/all/disable_ipv6", "1")

	server := startServerOf(t, "", true)

	expectAssociated(t, "127.0.0.1", server.Port(), long, "")
}

// A kernel without SCTP, which has no server either, rejects the protocol.
func TestSCTPWithoutServer(t *testing.T) {
	inNamespace(t)
	server := startServer(t, "127.0.0.2")
	if supportsSCTP() {
		t.Skip("this kernel aborts associations, which a server's would do as well")
	}
	expectAssociated(t, "127.0.0.2", server.Port(), long, "refused")
}

func supportsSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// A Service has another address and port than the pod behind it.
func TestSCTPThroughAService(t *testing.T) {
	inNamespace(t)
	server := startServerOf(t, "127.0.0.1", true)
	nftChain(t, "type nat hook output priority -100", fmt.Sprintf("ip daddr 127.0.0.9 sctp dport 90 dnat ip to %s", server))

	expectAssociated(t, "127.0.0.9", 90, long, "")
}

// nft writes rules for what passes a hook of the test's namespace.
func nft(t *testing.T, hook string, rules ...string) {
	t.Helper()
	nftChain(t, "type filter hook "+hook+" priority 0", rules...)
}

func nftChain(t *testing.T, kind string, rules ...string) {
	t.Helper()
	table := fmt.Sprintf("table inet test {\nchain test {\n%s\n%s\n}\n}\n", kind, strings.Join(rules, "\n"))
	cmd := exec.Command("nft", "-f", "-") // inherits the namespace of this thread
	cmd.Stdin = strings.NewReader(table)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestSCTPThatIsRejected(t *testing.T) {
	inNamespace(t)
	nft(t, "input",
		"sctp dport 81 drop",
		"sctp dport 82 reject with icmpx type port-unreachable",
		"sctp dport 83 reject with icmpx type admin-prohibited",
		"sctp dport 84 reject with icmpx type host-unreachable")
	for _, host := range []string{"127.0.0.1", "::1"} {
		expectAssociated(t, host, 81, short, "timeout")
		expectAssociated(t, host, 82, long, "refused")
		expectAssociated(t, host, 83, long, "unreachable")
		expectAssociated(t, host, 84, short, "timeout") // as of UDP: the next INIT may find a way
	}
}

func TestSCTPThatIsNotSent(t *testing.T) {
	inNamespace(t)
	nft(t, "output", "meta l4proto sctp drop")
	for _, host := range []string{"127.0.0.1", "::1"} {
		expectAssociated(t, host, 80, long, "unreachable")
	}
}

// A raw socket also gets the ICMP errors about what other sockets have sent to its address.
func TestSCTPWhileOthersAreRejected(t *testing.T) {
	inNamespace(t)
	nft(t, "input", "sctp dport 81 reject with icmpx type port-unreachable")
	for _, host := range []string{"127.0.0.1", "::1"} {
		server := startServerOf(t, host, true)
		served := begin(t, server)
		silent := begin(t, netip.AddrPortFrom(server.Addr(), 82))
		if err := silent.send(); err != nil {
			t.Fatal(err)
		}

		expectAssociated(t, host, 81, long, "refused")

		if err := served.establish(time.Now().Add(long), long); err != nil {
			t.Errorf("%s: %v", server, err)
		}
		if err := silent.receive(time.Now().Add(short)); err == nil || kindOf(err) != "timeout" {
			t.Errorf("%s, port 82: %v", host, err)
		}
	}
}

func begin(t *testing.T, to netip.AddrPort) *association {
	t.Helper()
	a, err := newAssociation(to, time.Now().Add(long))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.conn.Close() })
	return a
}

// abort is an ABORT with the T bit, as kernels answer to what they do not know (RFC 9260, section
// 8.4). It is about no attempt here, and its checksum is wrong.
var abort = []byte{0, 80, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 6, 1, 0, 4}

// answering returns the address of a server that sends what answers returns for its n-th INIT,
// n from 0, until the test ends.
func answering(t *testing.T, answers func(n int, init sctp.Packet) [][]byte) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenIP(rawNetwork(true), &net.IPAddr{IP: net.IPv4(127, 0, 0, 2)})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		conn.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		buffer := make([]byte, 1500)
		for n := 0; ; {
			size, from, err := conn.ReadFromIP(buffer)
			if err != nil {
				return
			}
			init, ok := sctp.Parse(buffer[:size])
			if !ok || init.Type != sctp.Init {
				continue
			}
			for _, b := range answers(n, init) {
				_, _ = conn.WriteToIP(b, from)
			}
			n++
		}
	}()
	return netip.MustParseAddrPort("127.0.0.2:80")
}

// wrong returns packets that are no answer to an INIT.
func wrong(init sctp.Packet) [][]byte {
	right := init.Answer(1)
	tag, to, from, kind := right, right, right, right
	tag.Verification++
	to.DstPort++
	from.SrcPort++
	kind.Type, kind.Verification = sctp.Init, 0
	sum := right.Bytes()
	sum[8]++
	return [][]byte{tag.Bytes(), to.Bytes(), from.Bytes(), kind.Bytes(), sum, right.Bytes()[:30], abort, {'x'}, make([]byte, 3000)}
}

func TestSCTPAnswersOfOthers(t *testing.T) {
	inNamespace(t)
	server := answering(t, func(n int, init sctp.Packet) [][]byte {
		if n == 0 {
			return wrong(init)
		}
		return append(wrong(init), init.Answer(1).Bytes())
	})
	expectAssociated(t, "127.0.0.2", server.Port(), short, "timeout")
	expectAssociated(t, "127.0.0.2", server.Port(), long, "")
}

// An answer from another address than the one that was asked does not arrive.
func TestSCTPAnswerFromAnotherAddress(t *testing.T) {
	inNamespace(t)
	other, err := net.DialIP(rawNetwork(true), &net.IPAddr{IP: net.IPv4(127, 0, 0, 3)}, &net.IPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	server := answering(t, func(_ int, init sctp.Packet) [][]byte {
		_, _ = other.Write(init.Answer(1).Bytes())
		return nil
	})
	expectAssociated(t, "127.0.0.2", server.Port(), short, "timeout")
}

// The INIT that is sent again is the same, so that it belongs to the same flow and association. That
// of another attempt comes from another port.
func TestSCTPIsSentAgain(t *testing.T) {
	inNamespace(t)
	got := make(chan sctp.Packet, 4)
	times := map[uint32]int{} // by tag
	server := answering(t, func(_ int, init sctp.Packet) [][]byte {
		times[init.Tag]++
		if times[init.Tag] <= 2 {
			got <- init
		}
		if times[init.Tag] == 1 {
			return nil
		}
		return [][]byte{init.Answer(1).Bytes()}
	})
	for range 2 {
		if err := begin(t, server).establish(time.Now().Add(long), 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	first, again, next := <-got, <-got, <-got
	if again != first || next.SrcPort == first.SrcPort || next.Tag == first.Tag {
		t.Errorf("got %+v, %+v and from another attempt %+v", first, again, next)
	}
	if first.SrcPort < firstPort || first.SrcPort > lastPort {
		t.Errorf("the source port is %d", first.SrcPort)
	}
}

// Garbage does not end a server.
func TestSCTPServerGetsGarbage(t *testing.T) {
	inNamespace(t)
	server := startServerOf(t, "127.0.0.1", true)
	client, err := net.Dial(rawNetwork(true), "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	garbage := append(wrong(sctp.Packet{Type: sctp.Init, SrcPort: 1, DstPort: server.Port(), Tag: 1}), nil)
	for _, b := range garbage {
		if _, err := client.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	expectAssociated(t, "127.0.0.1", server.Port(), long, "")
}

// Without the capability the attempt could not be made: that is not a denial.
func TestSCTPWithoutTheRight(t *testing.T) {
	inNamespace(t)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[0].Effective &^= 1 << unix.CAP_NET_RAW
	if err := unix.Capset(&header, &data[0]); err != nil { // of this thread
		t.Fatal(err)
	}

	err := associate(netip.MustParseAddrPort("127.0.0.1:80"), time.Now().Add(long))
	_, serverErr := listen("127.0.0.1:0", true)

	if err == nil || kindOf(err) != "other" || !strings.Contains(err.Error(), "CAP_NET_RAW") {
		t.Errorf("client: %v", err)
	}
	if serverErr == nil || !strings.Contains(serverErr.Error(), "CAP_NET_RAW") {
		t.Errorf("server: %v", serverErr)
	}
}

// The flag of the server, and the target of try.
func TestSCTPCommands(t *testing.T) {
	labtest.Need(t)
	at := netip.MustParseAddrPort("127.1.2.3:8132") // no port that kernels choose
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, nil, nil, []string{"serve", "-sctp", "-listen", at.String()}) }()
	order := fmt.Sprintf(`{"id": 1, "target": "sctp://%s", "milliseconds": 1000}`, at)
	deadline := time.Now().Add(long)
	failure := tried(t, nil, order)[1]
	for failure != "" && len(ended) == 0 && time.Now().Before(deadline) {
		failure = tried(t, nil, order)[1]
	}
	cancel()
	if err := <-ended; err != nil || failure != "" {
		t.Errorf("got %q, server: %v", failure, err)
	}
}
