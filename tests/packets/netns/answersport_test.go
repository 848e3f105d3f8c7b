package netns

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/agent/newpods"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestACrowdAtThePortOfAnswers: 80 addresses shake hands as fast as they can, some with certificates of
// 240 kB that say that they are an agent's, and others beside them from the address of the writer. All questions of the writer that holds the Lease are answered,
// and the API server is asked for no such name.
func TestACrowdAtThePortOfAnswers(t *testing.T) {
	o, api := newOtherAgent(t, newCluster(t, 2, "x/web@1"))
	writer, identity := newWriter(t)
	var asked atomic.Int64
	stop := serveAPI(t, o.Nodes[0], withLease(api, identity, func(r *http.Request) {
		if strings.Contains(r.URL.String(), "aaaa") {
			asked.Add(1)
		}
	}))
	defer stop()
	agent := o.startAsker()
	o.takeCrowdAddrs()

	if err := o.askAsWriter(t.Context(), writer); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	var crowd sync.WaitGroup
	defer crowd.Wait()
	defer end()
	var connected atomic.Int64
	long := certificateOfLength(t, 240<<10)
	for i := range 100 {
		certificate := o.forged
		if i%8 == 0 {
			certificate = long
		}
		crowd.Go(func() {
			for ctx.Err() == nil {
				from := crowdAddr(i)
				if i >= 80 {
					from = o.Nodes[1].Addrs[0]
				}
				if o.shake(ctx, from, certificate) {
					connected.Add(1)
				}
			}
		})
	}
	if n := labtest.Until(t, agent, 100, func(m lab.Metrics) float64 { return m.Sum("netpol_http_connections_refused_total") }); n < 100 {
		t.Errorf("%v connections of the crowd are refused", n)
	}
	for i := range 8 {
		if err := o.askAsWriter(ctx, writer); err != nil {
			t.Errorf("question %d of the writer: %v", i+1, err)
		}
	}
	end()
	crowd.Wait()
	if connected.Load() == 0 || asked.Load() != 0 {
		t.Errorf("%d connections of the crowd; the API server was asked %d times for a long name", connected.Load(), asked.Load())
	}
}

// TestListeningAgentsLeaveTheWriterItsPlaces: as many agents listen as there are places. All questions of the
// writer are answered, one agent more gets a stream, and only the oldest is closed.
func TestListeningAgentsLeaveTheWriterItsPlaces(t *testing.T) {
	o, api := newOtherAgent(t, newCluster(t, 2, "x/web@1"))
	writer, identity := newWriter(t)
	var agents []*tls.Certificate
	for i := range bounds.Connections + 1 {
		node := &lab.Node{Host: &lab.Host{Name: fmt.Sprint("far-", i), Addrs: []netip.Addr{crowdAddr(i)}},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 250, byte(i), 0}), 24)}}
		_, message, certificate := keyOf(t, node.Name)
		put(t, api, node.Object(), agentPod(node, message))
		agents = append(agents, certificate)
	}
	stop := serveAPI(t, o.Nodes[0], withLease(api, identity, nil))
	defer stop()
	o.startAsker()
	o.takeCrowdAddrs()

	var streams []*bufio.Reader
	listen := func(i int) {
		t.Helper()
		stream, err := o.listenAs(crowdAddr(i), agents[i])
		if err != nil {
			t.Fatalf("agent %d does not listen: %v", i, err)
		}
		streams = append(streams, stream)
	}
	for i := range bounds.Connections {
		listen(i)
	}
	for i := range 5 {
		if err := o.askAsWriter(t.Context(), writer); err != nil {
			t.Errorf("question %d of the writer: %v", i+1, err)
		}
	}
	closed := make(chan int, len(streams))
	for i, stream := range streams {
		go func() {
			_, _ = io.Copy(io.Discard, stream)
			closed <- i
		}()
	}
	listen(bounds.Connections)
	select {
	case i := <-closed:
		if i != 0 {
			t.Errorf("stream %d is closed, want the oldest", i)
		}
	case <-time.After(labtest.ChangeTimeout):
		t.Error("no stream is closed")
	}
}

// listenAs opens a stream of new pods from an address, and returns what follows the head of the answer.
func (o *otherAgent) listenAs(from netip.Addr, certificate *tls.Certificate) (*bufio.Reader, error) {
	ctx, cancel := context.WithTimeout(o.t.Context(), time.Minute)
	defer cancel()
	// The agent lists the keys of a few nodes a second, and closes the connections of others.
	for {
		conn, err := o.dialAgent(ctx, certificate, func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}) })
		if err != nil {
			return nil, err
		}
		o.t.Cleanup(func() { _ = conn.NetConn().Close() })
		stream := bufio.NewReader(conn)
		if _, err := io.WriteString(conn, "GET "+newpods.Path+" HTTP/1.1\r\nHost: agent\r\n\r\n"); err == nil {
			if answer, err := http.ReadResponse(stream, nil); err == nil && answer.StatusCode == http.StatusOK {
				return stream, conn.SetDeadline(time.Time{})
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// newWriter returns the certificate of a status writer, and the holder of its Lease.
func newWriter(t *testing.T) (*tls.Certificate, string) {
	t.Helper()
	writer, err := tlskey.SelfSigned("writer-0")
	if err != nil {
		t.Fatal(err)
	}
	return writer, tlskey.Of(writer.Leaf).Identity("writer-0")
}

// withLease serves the Lease of the status writer beside an API. seen gets all requests.
func withLease(api http.Handler, identity string, seen func(*http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen != nil {
			seen(r)
		}
		if !strings.Contains(r.URL.Path, "/leases/") {
			api.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &identity}}
		lease.APIVersion, lease.Kind, lease.Name = "coordination.k8s.io/v1", "Lease", tlskey.Lease
		_ = json.NewEncoder(w).Encode(lease)
	})
}

// crowdAddr is an address of the second node that takeCrowdAddrs makes its own.
func crowdAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 18, 0, byte(130 + i)}) }

func (o *otherAgent) takeCrowdAddrs() {
	o.t.Helper()
	if _, err := o.Nodes[1].Run(o.t.Context(), "", "ip", "route", "add", "local", "172.18.0.128/25", "dev", "lo"); err != nil {
		o.t.Fatal(err)
	}
}

// certificateOfLength returns a certificate that says that it is of an agent of a node with a long name.
func certificateOfLength(t *testing.T, bytes int) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: strings.Repeat("a", bytes), Organization: []string{"kube-network-policies agent"}}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// dialAgent connects from the second node to the agent under test.
func (o *otherAgent) dialAgent(ctx context.Context, certificate *tls.Certificate, options ...lab.SocketOption) (*tls.Conn, error) {
	port, err := strconv.ParseUint(agentsPort, 10, 16)
	if err != nil {
		return nil, err
	}
	conn, err := o.Nodes[1].Dial(ctx, lab.TCP, netip.AddrPortFrom(o.Nodes[0].Addrs[0], uint16(port)), options...)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		err = conn.SetDeadline(deadline)
	}
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*certificate}, ServerName: secretOf(certificate)}), err
}

// secretOf is the server name in the handshakes of who has a certificate.
func secretOf(certificate *tls.Certificate) string {
	hash := sha256.Sum256(certificate.Certificate[0])
	return hex.EncodeToString(hash[:16])
}

// shake makes a TLS handshake from an address, and waits until the agent closes the connection. It reports
// whether there was one.
func (o *otherAgent) shake(ctx context.Context, from netip.Addr, certificate *tls.Certificate) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := o.dialAgent(ctx, certificate, func(fd int) error { return unix.Bind(fd, &unix.SockaddrInet4{Addr: from.As4()}) })
	if err != nil {
		return false
	}
	defer conn.Close()
	context.AfterFunc(ctx, func() { _ = conn.NetConn().Close() })
	_ = conn.HandshakeContext(ctx)
	_, _ = io.Copy(io.Discard, conn)
	return true
}

// askAsWriter asks the agent under test what is in force.
func (o *otherAgent) askAsWriter(ctx context.Context, certificate *tls.Certificate) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := o.dialAgent(ctx, certificate)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET "+inforce.Path+" HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP status %d", answer.StatusCode)
	}
	_, err = inforce.Decode(answer.Body)
	return err
}
