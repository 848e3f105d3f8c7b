package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// here runs a command on this machine in place of a pod.
func here(ctx context.Context, _, _ string, command []string, in io.Reader, out, errs io.Writer) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "http_proxy=http://127.0.0.1:1"}
	cmd.Stdout, cmd.Stderr = out, errs
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(stdin, in)
		stdin.Close()
	}()
	return cmd.Run()
}

// silent returns the address of a listener that answers nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// netexec answers requests to dial like that of agnhost.
func netexec(w http.ResponseWriter, r *http.Request) {
	switch q := r.URL.Query(); q.Get("host") {
	case "10.0.0.1", "fd00::1":
		if q.Get("protocol") == "udp" && q.Get("port") == "81" && q.Get("request") == "hostname" {
			fmt.Fprint(w, dialled)
		}
	case "10.0.0.2":
		fmt.Fprint(w, `{"errors":["reading from udp connection failed. err:'connection refused'"]}`)
	default:
		<-r.Context().Done()
	}
}

// With agnhost, one call of curl makes all attempts, each with its own timeout.
func TestAgnhost(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	server := httptest.NewServer(http.HandlerFunc(netexec))
	t.Cleanup(server.Close)
	reset := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := w.(http.Hijacker).Hijack()
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}))
	t.Cleanup(reset.Close)
	address, _ := url.Parse(server.URL)
	p := agnhost{address.Port()}
	s := startSession(here, "x/a", p, p.try())
	t.Cleanup(s.end)
	targets := map[string]string{
		"tcp://" + httptestOK(t):                  "",
		"tcp://" + silent(t):                      "timeout",
		"tcp://127.0.0.1:1":                       "refused",
		"tcp://" + reset.Listener.Addr().String(): "refused",
		"tcp://name.invalid:80":                   "other",
		"udp://10.0.0.1:81":                       "",
		"udp://[fd00::1]:81":                      "",
		"udp://10.0.0.1:82":                       "refused", // another answer than that of porter
		"udp://10.0.0.2:81":                       "refused",
		"udp://10.0.0.3:81":                       "timeout",
	}
	for range 2 {
		var attempts []attempt
		var want []string
		for target, failure := range targets {
			milliseconds := int64(20000) // nothing depends on how busy the machine is
			if failure == "timeout" {
				milliseconds = 50
			}
			attempts = append(attempts, attempt{ID: len(want), Target: target, Milliseconds: milliseconds})
			want = append(want, failure)
		}
		results, err := s.try(t.Context(), attempts)
		if err != nil {
			t.Fatal(err)
		}
		for i, a := range attempts {
			if results[i].Failure != want[i] {
				t.Errorf("%s: %q (%s), want %q", a.Target, results[i].Failure, results[i].Error, want[i])
			}
		}
	}
}

// httptestOK returns the address of a server that answers like porter.
func httptestOK(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, served) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// Without the prober there are no raw sockets, echo requests or held connections; pods run agnhost.
func TestWithoutTheProber(t *testing.T) {
	b, err := newBackend(t.Context(), newWorld(t), nil, "t", here, Config{Image: "agnhost", Families: []corev1.IPFamily{corev1.IPv4Protocol}})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.Supports().Protocols, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}; !slices.Equal(got, want) {
		t.Errorf("protocols are %v, want %v", got, want)
	}
	_, holdErr := b.Hold(t.Context(), toB("x/a"))
	_, timeErr := b.Time(t.Context(), toB("x/a"))
	if !errors.Is(holdErr, errors.ErrUnsupported) || !errors.Is(timeErr, errors.ErrUnsupported) {
		t.Errorf("held: %v; timed: %v", holdErr, timeErr)
	}
	pod := netpol.NewPod("x", "a", "node-1", []int32{80})
	container := b.containers(&netpol.State{Ports: []int32{80}}, pod)[0]
	if len(container.Env) != 2 || container.Env[1].Name != "SERVE_UDP_PORT_80" || !strings.Contains(container.Command[2], "porter") || container.Image != "agnhost" {
		t.Errorf("the container is %+v", container)
	}
}
