// Package apiconn makes connections to an API server: it decides how they are dialled, how
// soon a dead one is noticed, and how often they are read. It knows nothing about requests
// and objects.
package apiconn

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
)

const (
	// dialTimeout is short, because the kernel repeats an unanswered SYN after 1, 2, 4
	// and 8 seconds: a new attempt finds a server that has come back sooner.
	dialTimeout = 3 * time.Second
	// A connection on which nothing was received for pingAfter is pinged (HTTP/2), and
	// closed if the answer takes pingTimeout. A stopped server, whose kernel still
	// acknowledges packets, is noticed like one whose network is gone.
	pingAfter, pingTimeout = 5 * time.Second, 4 * time.Second
)

// Connections are the connections to an API server. The zero value is ready to use.
type Connections struct {
	lists atomic.Int32 // lists in progress

	mu      sync.Mutex
	changes runner.Rate
}

// Client returns an HTTP client for the API server of config. With HTTP/2 it uses one
// connection for all requests.
func (c *Connections) Client(config *rest.Config) (*http.Client, error) {
	// client-go has no other setting for this. The setting survives a change of the CA file,
	// after which client-go builds a new transport.
	for name, d := range map[string]time.Duration{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": pingAfter,
		"HTTP2_PING_TIMEOUT_SECONDS":      pingTimeout,
	} {
		if os.Getenv(name) != "" {
			continue // the operator's choice
		}
		if err := os.Setenv(name, fmt.Sprint(int(d.Seconds()))); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	config = rest.CopyConfig(config)
	config.Dial = c.dial
	return rest.HTTPClientFor(config)
}

// dial implements rest.Config.Dial.
func (c *Connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout: dialTimeout,
		// For proxies that speak HTTP/1, which has no pings.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: pingAfter, Interval: pingTimeout / 4, Count: 4},
	}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &pacedConn{conn, c.reader(conn)}, nil
}
