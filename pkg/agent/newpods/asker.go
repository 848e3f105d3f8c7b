package newpods

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/event"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/handshake"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

const (
	// askFor is how long an agent is listened to after the last packet of an unknown address of its
	// node: pods that start in a row are then known before their first packets.
	askFor = 5 * time.Minute
	// keepFor is how long a report counts after its conversation: longer than a slow kubelet takes to
	// write the status of a pod. Without an owner of its address, the connections that the pod has
	// opened by then would be removed.
	keepFor = 30 * time.Second
	// maxReports bounds the nodes whose reports count, with those that are no longer asked.
	maxReports = 2 * bounds.AskedNodes
	// listenFor is how long one conversation takes: the agent ends it after bounds.StreamTime.
	listenFor = bounds.StreamTime - bounds.LineSilence
	// retryAfter is the time until a node is asked again whose agent did not answer.
	retryAfter = 2 * time.Second
	// waiting is how many addresses may wait to be looked up.
	waiting = 256
)

// Config configures an Asker.
type Config struct {
	Peers
	// NodesAt returns the other nodes that may have a new pod at an address.
	NodesAt func(netip.Addr) []string
	// Set receives the sandboxes of a node, newest first, nil some time after it is no longer asked.
	// It must not call the Asker.
	Set func(node string, newestFirst []clusterstate.Sandbox)
	// Registerer receives the metrics.
	Registerer prometheus.Registerer
}

// Asker asks agents of other nodes. Want may be called from any goroutine.
type Asker struct {
	cfg    Config
	wanted chan netip.Addr
	dial   func(ctx context.Context, network, address string) (net.Conn, error)

	failed, skipped prometheus.Counter
	errors          rate.Sometimes

	mu      sync.Mutex
	nodes   map[string]*conversation
	reports map[string]*time.Timer // by node, those that count; the timer, if any, ends that
}

// conversation is how a node is asked.
type conversation struct {
	until time.Time // when it ends, unless the node is wanted again
	end   time.Time // when it ends at the latest
	rest  bool      // it has failed, and the node is asked again after until
}

// NewAsker returns an Asker. It asks no agent before Run.
func NewAsker(cfg Config) *Asker {
	a := &Asker{
		cfg:    cfg,
		wanted: make(chan netip.Addr, waiting),
		dial:   (&net.Dialer{Timeout: bounds.LineSilence}).DialContext,
		nodes:  map[string]*conversation{}, reports: map[string]*time.Timer{},
		errors: rate.Sometimes{First: 1, Interval: time.Minute},
	}
	errors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "netpol_new_pods_errors_total",
		Help: "Agents of other nodes that could not be asked about their new pods. failed: attempts. skipped: 64 others were being asked.",
	}, []string{"error"})
	a.failed, a.skipped = errors.WithLabelValues("failed"), errors.WithLabelValues("skipped")
	cfg.Registerer.MustRegister(errors)
	return a
}

// Tap asks for the pods that packets begin to wait for. It is an event.Tap.
func (a *Asker) Tap(ev *event.Event) { ev.Wanted(a.Want) }

// Want says that a packet waits for the pod at an address. It does not block.
func (a *Asker) Want(addr netip.Addr) {
	select {
	case a.wanted <- addr:
	default: // the packet waits for the status
	}
}

// Run asks agents until ctx ends.
func (a *Asker) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "newpods"))
	var conversations sync.WaitGroup
	defer a.stopTimers()
	defer conversations.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case addr := <-a.wanted:
			for _, node := range a.cfg.NodesAt(addr) {
				if a.begin(node) {
					conversations.Go(func() { a.converse(ctx, node) })
				}
			}
		}
	}
}

// begin reports whether a conversation with a node has to be started. Otherwise it continues one, or
// the node has failed lately, or too many are asked.
func (a *Asker) begin(node string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	c := a.nodes[node]
	switch {
	case c != nil && !c.rest:
		c.until = now.Add(min(askFor, c.end.Sub(now)))
		return false
	case c != nil && now.Before(c.until):
		return false
	case c == nil && len(a.nodes) >= bounds.AskedNodes && !a.forgetRested(now):
		a.skipped.Inc()
		return false
	}
	a.nodes[node] = &conversation{until: now.Add(askFor), end: now.Add(listenFor)}
	return true
}

// forgetRested removes a node that may be asked again, and reports whether there was one.
func (a *Asker) forgetRested(now time.Time) bool {
	for node, c := range a.nodes {
		if c.rest && now.After(c.until) {
			delete(a.nodes, node)
			return true
		}
	}
	return false
}

// converse listens to the agent of a node until the node has not been wanted for some time, or fails.
func (a *Asker) converse(ctx context.Context, node string) {
	err := a.listen(ctx, node)
	failed := err != nil && ctx.Err() == nil
	if failed {
		a.failed.Inc()
		a.errors.Do(func() {
			klog.FromContext(ctx).Error(err, "Another node does not say which pods it has just started: their packets wait for their status", "node", node)
		})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgetLater(node)
	if failed {
		a.nodes[node] = &conversation{until: time.Now().Add(retryAfter), rest: true}
	} else {
		delete(a.nodes, node)
	}
}

// report passes on what a node reports.
func (a *Asker) report(node string, sandboxes []clusterstate.Sandbox) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if timer := a.reports[node]; timer != nil {
		timer.Stop()
	}
	a.reports[node] = nil
	a.cfg.Set(node, sandboxes)
}

// forgetLater has the report of a node count for some time yet. The caller holds a.mu.
func (a *Asker) forgetLater(node string) {
	timer, reported := a.reports[node]
	switch {
	case timer != nil: // of an earlier conversation: this one has brought no report
	case !reported || len(a.reports) > maxReports:
		a.forget(node)
	default:
		timer = time.AfterFunc(keepFor, func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.reports[node] == timer { // the node has not reported again
				a.forget(node)
			}
		})
		a.reports[node] = timer
	}
}

func (a *Asker) forget(node string) {
	delete(a.reports, node)
	a.cfg.Set(node, nil)
}

func (a *Asker) stopTimers() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, timer := range a.reports {
		if timer != nil {
			timer.Stop()
		}
	}
}

// isOver reports whether a node has not been wanted for some time.
func (a *Asker) isOver(node string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Now().After(a.nodes[node].until)
}

// listen passes on what the agent of a node reports. It returns nil when the node has not been wanted for
// some time.
func (a *Asker) listen(ctx context.Context, node string) error {
	address, err := a.cfg.Agents.addressOf(ctx, node)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: bounds.AnswerHeader,
		ResponseHeaderTimeout:  bounds.LineSilence,
		DialTLSContext: handshake.Dial(a.dial, tlskey.ClientConfig(a.cfg.Certificate, func(c *x509.Certificate) error {
			return a.cfg.Agents.check(ctx, node, c, a.cfg.Agents.asks)
		})),
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(address, a.cfg.Port)+Path, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("HTTP status %d", response.StatusCode)
	}
	return a.read(ctx, node, response.Body)
}

// read passes on lines. A line without news is a heartbeat.
func (a *Asker) read(ctx context.Context, node string, body io.ReadCloser) error {
	alive := time.AfterFunc(bounds.LineSilence, func() { _ = body.Close() })
	defer alive.Stop()
	limit, scanner := rate.NewLimiter(bounds.LineRate, bounds.LineRate), lines(body)
	for scanner.Scan() {
		alive.Reset(bounds.LineSilence)
		sandboxes, err := parse(scanner.Bytes())
		if err != nil {
			return err
		}
		if err := limit.Wait(ctx); err != nil {
			return err
		}
		a.report(node, sandboxes)
		if a.isOver(node) {
			return nil
		}
	}
	if err := scanner.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}
