package agent

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

	"sigs.k8s.io/kube-network-policies/pkg/httpserver"
)

// Probe requests an endpoint, "livez" or "readyz", of the agent at a probe socket. The
// error has the reason of the agent if it fails.
func Probe(ctx context.Context, socket, endpoint string) error {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/"+endpoint, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("probe %s at %s: %w", endpoint, socket, errors.Unwrap(err))
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxReason))
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", endpoint, strings.TrimSpace(string(body)))
	}
	return err
}

// maxReason bounds the response that Probe reads.
const maxReason = 64 << 10

// serveProbes serves at a unix socket until ctx ends. A socket that is there already is one
// of an earlier process.
func serveProbes(ctx context.Context, server *httpserver.Server, socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("probe-socket: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return fmt.Errorf("probe-socket %q: %w", socket, err)
	}
	return server.Run(ctx, listener, nil)
}

// listenEvery is the interval between two attempts to listen at an address in use.
const listenEvery = 200 * time.Millisecond

// serve serves at address, to whom access allows, until ctx ends. While the address is in
// use it waits, because the agent that this one takes over from serves there until it ends.
func serve(ctx context.Context, server *httpserver.Server, address string, access *httpserver.Access) error {
	for first := true; ; first = false {
		listener, err := net.Listen("tcp", address)
		if err == nil {
			return server.Run(ctx, listener, access)
		}
		err = fmt.Errorf("metrics-bind-address %q: %w", address, err)
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		if first {
			klog.FromContext(ctx).Error(err, "Metrics are not served until the address is free")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(listenEvery):
		}
	}
}
