package netns

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

const dnsPort = 53

// resolver is a DNS server on a pod. It answers by UDP and TCP over both families.
type resolver struct {
	host *lab.Host

	mu   sync.Mutex
	zone map[string][]netip.Addr // by name, in lower case with a trailing dot
	ttl  uint32                  // of all answers, in seconds
	// changing makes the answers in place of zone, if it is not nil. It reports whether one is lost.
	changing func(dnsmessage.Message) (answer dnsmessage.Message, lost bool)
}

func newResolver(t *testing.T, host *lab.Host) *resolver {
	t.Helper()
	r := &resolver{host: host, zone: make(map[string][]netip.Addr), ttl: shortTTL}
	for _, addr := range host.Addrs {
		at := netip.AddrPortFrom(addr, dnsPort)
		conn, err := host.ListenPacket(at)
		if err != nil {
			t.Fatal(err)
		}
		go r.serveUDP(conn)
		listener, err := host.Listen(at)
		if err != nil {
			t.Fatal(err)
		}
		go r.serveTCP(listener)
	}
	return r
}

// set sets the addresses of a name.
func (r *resolver) set(name string, addrs ...netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.zone[name] = addrs
}

// extend sets the TTL of all answers, in seconds.
func (r *resolver) extend(ttl uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ttl = ttl
}

func (r *resolver) serveUDP(conn *net.UDPConn) {
	buffer := make([]byte, 64<<10)
	for {
		n, client, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return // closed with the host
		}
		if answer := r.answer(buffer[:n], true); answer != nil {
			conn.WriteToUDPAddrPort(answer, client)
		}
	}
}

func (r *resolver) serveTCP(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // closed with the host
		}
		go func() {
			defer conn.Close()
			for {
				query, err := readMessage(conn)
				if err != nil {
					return
				}
				answer := r.answer(query, false)
				conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
			}
		}()
	}
}

// readMessage reads a message with its length from a stream.
func readMessage(from io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(from, message)
	return message, err
}

// answer returns the resolver's answer to a query, nil for none.
func (r *resolver) answer(query []byte, short bool) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	r.mu.Lock()
	defer r.mu.Unlock()
	answer := answerFor(r.ttl, m.ID, q, r.zone[strings.ToLower(q.Name.String())]...)
	if r.changing != nil {
		changed, lost := r.changing(m)
		if lost {
			return nil
		}
		answer = pack(changed)
	}
	if short && len(answer) > 512 {
		return pack(dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Truncated: true}, Questions: m.Questions})
	}
	return answer
}

// shortTTL is the usual TTL of answers, in seconds.
const shortTTL = 10

func answerFor(ttl uint32, id uint16, q dnsmessage.Question, addrs ...netip.Addr) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, Response: true, RecursionAvailable: true}, Questions: []dnsmessage.Question{q}}
	for _, addr := range addrs {
		header := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: ttl}
		switch {
		case addr.Is4() && q.Type == dnsmessage.TypeA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
	return pack(m)
}

func pack(m dnsmessage.Message) []byte {
	b, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return b
}

// lookUp makes a pod look up all addresses of a name with a resolver library, by UDP or
// TCP.
func (c *cluster) lookUp(t *testing.T, pod, name string, proto lab.Proto, at netip.Addr) []netip.Addr {
	t.Helper()
	library := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		if strings.HasPrefix(network, "tcp") {
			proto = lab.TCP
		}
		return c.Hosts[pod].Dial(ctx, proto, netip.AddrPortFrom(at, dnsPort))
	}}
	ctx, cancel := context.WithTimeout(t.Context(), labtest.ChangeTimeout)
	defer cancel()
	addrs, err := library.LookupNetIP(ctx, "ip", name)
	if err != nil {
		t.Fatalf("%s asks %s for %s: %v", pod, at, name, err)
	}
	return addrs
}
