package httpserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

// tokens are the answers of an Access by token. Any other token is invalid.
var tokens = map[string]error{
	"reader":   nil,
	"other":    fmt.Errorf("%w: user %q", ErrForbidden, "other"),
	"flood":    ErrBusy,
	"no-reply": errors.New("the API server does not answer"),
}

func authorize(_ context.Context, path, token string) error {
	err, ok := tokens[token]
	if ok && path == "/own" {
		return ErrForbidden
	}
	if !ok {
		return ErrUnauthenticated
	}
	return err
}

// startSecure serves metrics and probes with a certificate.
func startSecure(t *testing.T, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) (address string) {
	t.Helper()
	return startSecureWith(t, certificate, nil)
}

// startSecureWith is startSecure with a Pods.
func startSecureWith(t *testing.T, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), pods Pods) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	reg := NewRegistry()
	fine := func() error { return nil }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- New(Handler(reg, fine, fine), pods, reg).Run(ctx, l, &Access{Certificate: certificate, Authorize: authorize})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

func selfSigned(t *testing.T, host string) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	t.Helper()
	certificate, err := tlskey.SelfSigned(host)
	if err != nil {
		t.Fatal(err)
	}
	return Fixed(certificate)
}

func TestMetricsAreForWhoeverMayReadThem(t *testing.T) {
	address := startSecure(t, selfSigned(t, "node-1"))
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	for _, tc := range []struct {
		path, authorization string
		want                int
		body                string
	}{
		{"/metrics", "Bearer reader", http.StatusOK, "go_goroutines"},
		{"/metrics", "bearer reader", http.StatusOK, "go_goroutines"},
		{"/metrics", "", http.StatusUnauthorized, "a bearer token is needed"},
		{"/metrics", "Bearer ", http.StatusUnauthorized, "a bearer token is needed"},
		{"/metrics", "Basic reader", http.StatusUnauthorized, "a bearer token is needed"},
		{"/metrics", "Bearer wrong", http.StatusUnauthorized, "not valid"},
		{"/metrics", "Bearer other", http.StatusForbidden, `user "other"`},
		{"/metrics", "Bearer flood", http.StatusTooManyRequests, "too many"},
		{"/metrics", "Bearer no-reply", http.StatusInternalServerError, "cannot be decided"},
		{"/metrics/../livez", "", http.StatusUnauthorized, "a bearer token is needed"},
		{"/other", "", http.StatusUnauthorized, "a bearer token is needed"},
		{"/own", "Bearer reader", http.StatusForbidden, "not allowed"},
		{"/livez", "", http.StatusOK, "ok"},
		{"/readyz", "", http.StatusOK, "ok"},
	} {
		t.Run(tc.path+" "+tc.authorization, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tc.authorization != "" {
				r.Header.Set("Authorization", tc.authorization)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()

			body, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != tc.want || !strings.Contains(string(body), tc.body) {
				t.Errorf("got %d %.200s %v, want %d %s", answer.StatusCode, body, err, tc.want, tc.body)
			}
			if answer.StatusCode != http.StatusOK && bytes.Contains(body, []byte("go_goroutines")) {
				t.Error("the metrics are in the answer")
			}
			if bytes.Contains(body, []byte("API server")) {
				t.Errorf("the answer is about the cluster: %s", body)
			}
			if answer.ProtoMajor != 1 {
				t.Errorf("%s: HTTP/2 is offered", answer.Proto)
			}
		})
	}
}

func TestWithoutTLSNothingIsServed(t *testing.T) {
	address := startSecure(t, selfSigned(t, "node-1"))
	answer, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return // also refused
	}
	defer answer.Body.Close()

	if answer.StatusCode != http.StatusBadRequest {
		t.Errorf("got %s", answer.Status)
	}
}

// names returns the hosts in a server's certificate.
func names(t *testing.T, address string) []string {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].DNSNames
}

// writePair writes a certificate for a host and its key.
func writePair(t *testing.T, certFile, keyFile, host string) {
	t.Helper()
	pair, err := selfSigned(t, host)(nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalECPrivateKey(pair.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, keyFile: {Type: "EC PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAChangedCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writePair(t, certFile, keyFile, "a.test")
	var reported []error
	certificate := CertificateFiles(certFile, keyFile, func(err error, inUse bool) {
		if !inUse {
			t.Error("no certificate is in use")
		}
		reported = append(reported, err)
	})
	address := startSecure(t, certificate)
	serves := func(want string) {
		t.Helper()
		if got := names(t, address); !slices.Equal(got, []string{want}) {
			t.Errorf("the certificate is for %v, want %s", got, want)
		}
	}
	serves("a.test")
	writePair(t, certFile, keyFile, "longer.name.test") // the size differs, in case the clock does not advance
	serves("longer.name.test")
	if err := os.WriteFile(certFile, []byte("half of a"), 0o600); err != nil {
		t.Fatal(err)
	}
	serves("longer.name.test")
	serves("longer.name.test")
	if len(reported) != 1 || !strings.Contains(reported[0].Error(), certFile) {
		t.Errorf("reported %v, want the file once", reported)
	}
	writePair(t, certFile, keyFile, "b.test")
	serves("b.test")
}

// Handshakes that never end do not keep other clients out, even if they come from many
// addresses of pods.
func TestHandshakesThatNeverEnd(t *testing.T) {
	address := startSecureWith(t, selfSigned(t, "node-1"), func(addr netip.Addr) (string, bool) {
		return "", addr.As4()[2] == 1 // 127.0.1.0/24
	})
	for i := range 2 * bounds.Connections {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%200))}}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write([]byte{22, 3, 1, 2, 0}); err != nil && i < bounds.Connections { // the start of a ClientHello
			t.Fatal(err)
		}
	}
	for _, from := range []net.IP{net.IPv4(127, 0, 0, 2), net.IPv4(127, 0, 1, 250)} {
		client := &http.Client{Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
			DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).DialContext,
		}}
		answer, err := client.Get("https://" + address + "/livez")
		if err != nil {
			t.Errorf("from %v: %v", from, err)
			continue
		}
		answer.Body.Close()
	}
}

// With Client, the handshake decides: TLS 1.3, a certificate that Client allows, and its key.
func TestClientsAreKnownByTheirKeys(t *testing.T) {
	known, other := keyPair(t), keyPair(t)
	stolen := tls.Certificate{Certificate: known.Certificate, PrivateKey: other.PrivateKey}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	allow := func(_ context.Context, c *x509.Certificate) error {
		if !bytes.Equal(c.Raw, known.Certificate[0]) {
			return errors.New("unknown")
		}
		return nil
	}
	var served atomic.Int32
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		fmt.Fprint(w, "answer")
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	server := New(http.NotFoundHandler(), nil, NewRegistry()).Serving(handler)
	go func() { done <- server.Run(ctx, l, &Access{Certificate: selfSigned(t, "node-1"), Client: allow}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for _, tc := range []struct {
		name         string
		certificates []tls.Certificate
		version      uint16 // the newest of the client
		ok           bool
	}{
		{"the key", []tls.Certificate{known}, tls.VersionTLS13, true},
		{"another key", []tls.Certificate{other}, tls.VersionTLS13, false},
		{"the certificate without its key", []tls.Certificate{stolen}, tls.VersionTLS13, false},
		{"no certificate", nil, tls.VersionTLS13, false},
		{"TLS 1.2", []tls.Certificate{known}, tls.VersionTLS12, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := served.Load()
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
				InsecureSkipVerify: true, Certificates: tc.certificates, MaxVersion: tc.version,
				ClientSessionCache: tls.NewLRUClientSessionCache(1),
			}}}
			for range 2 { // the second time a session would be resumed
				answer, err := client.Get("https://" + l.Addr().String() + "/livez")
				if err == nil {
					answer.Body.Close()
				}
				if (err == nil) != tc.ok {
					t.Errorf("got %v, want an answer: %v", err, tc.ok)
				}
			}
			if got := served.Load() - before; !tc.ok && got != 0 {
				t.Errorf("%d requests were served", got)
			}
		})
	}
}

func keyPair(t *testing.T) tls.Certificate {
	t.Helper()
	pair, err := selfSigned(t, "writer-0")(nil)
	if err != nil {
		t.Fatal(err)
	}
	return *pair
}
