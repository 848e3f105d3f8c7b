package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// DefaultSocket is the probe socket of the agents that an installation makes.
const DefaultSocket = "/run/kube-network-policies/probe"

// Probe requests an endpoint, "livez", "readyz", "metrics" or "table", of the agent at a probe socket, and
// writes the answer to out. The error has the reason of the agent if it fails.
func Probe(ctx context.Context, socket, endpoint string, out io.Writer) error {
	body, err := Get(ctx, socket, endpoint)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(out, body)
	return err
}

// Get requests a path from the agent at a probe socket. The caller closes the reader.
func Get(ctx context.Context, socket, path string) (io.ReadCloser, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/"+path, nil)
	if err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(request.URL.Path, "/")
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s at %s: %w", name, socket, errors.Unwrap(err))
	}
	if response.StatusCode == http.StatusOK {
		return response.Body, nil
	}
	defer response.Body.Close()
	reason, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
	return nil, fmt.Errorf("%s: %s", name, strings.TrimSpace(string(reason)))
}

// maxReason bounds how much of a failure's reason is read.
const maxReason = 64 << 10

// serveSocket serves clients of a unix socket until ctx ends. An existing socket was left by an
// earlier process and is replaced.
func serveSocket(ctx context.Context, server *httpserver.Server, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("probe-socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("probe-socket %q: %w", socket, err)
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return fmt.Errorf("probe-socket: %w", errors.Join(err, listener.Close()))
	}
	return server.Run(ctx, listener, nil)
}

// listenEvery is the interval between two attempts to listen at an address in use.
const listenEvery = 200 * time.Millisecond

// serve serves clients that access allows at address until ctx ends. It waits while the
// address, the value of a flag, is in use: the agent that this one takes over from serves there until
// it ends.
func serve(ctx context.Context, server *httpserver.Server, flag, address string, access *httpserver.Access) error {
	for first := true; ; first = false {
		listener, err := net.Listen("tcp", address)
		if err == nil {
			return server.Run(ctx, listener, access)
		}
		err = fmt.Errorf("%s %q: %w", flag, address, err)
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		if first {
			klog.FromContext(ctx).Error(err, "Not served until the address is free")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenEvery):
		}
	}
}
