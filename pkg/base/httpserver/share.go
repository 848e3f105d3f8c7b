package httpserver

import (
	"context"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// share limits the connections of a group of clients, independent of other shares.
type share struct {
	closed    prometheus.Counter
	requests  *pace // nil without a limit
	perClient int
	// replace has a new connection replace the oldest one also while that is answered.
	replace bool

	mu      sync.Mutex
	open    []*connection // oldest first
	holders map[client]*holder
}

// holder is a client with its connections.
type holder struct {
	client client
	open   int
	// turn is held by the one connection of the client that waits for a pace, so that a client
	// gains nothing from many connections.
	turn chan struct{}
}

func newShare(closed prometheus.Counter, perClient int, replace bool) *share {
	return &share{
		closed:    closed,
		requests:  newPace(bounds.RequestRate),
		perClient: perClient,
		replace:   replace,
		holders:   make(map[client]*holder),
	}
}

// admit reports whether a connection gets a place. It may close another connection to make room.
func (s *share) admit(c *connection, identity client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holders[identity]
	if h == nil {
		h = &holder{client: identity, turn: make(chan struct{}, 1)}
	}
	if h.open >= s.perClient || len(s.open) >= bounds.Connections {
		s.closed.Inc()
		old := s.displaced(h)
		if old == nil {
			return false
		}
		s.drop(old)
		_ = old.Conn.Close()
	}
	s.holders[identity] = h // displacing its last connection may have removed it
	h.open++
	c.share, c.holder = s, h
	s.open = append(s.open, c)
	return true
}

// displaced returns the connection to close for a new one of h: the oldest idle connection
// of a client with the most connections, or of h itself if h is at its limit. If none is
// idle, it is the oldest of a client that will still have as many as h. With replace, connections
// count as idle. It returns nil if no connection may be closed.
func (s *share) displaced(h *holder) *connection {
	most := 0
	for _, other := range s.holders {
		most = max(most, other.open)
	}
	var busy *connection
	for _, c := range s.open {
		if c.holder.open < most || h.open == s.perClient && c.holder != h {
			continue
		}
		if !c.busy || s.replace {
			return c
		}
		if busy == nil && h.open+1 < most {
			busy = c
		}
	}
	return busy
}

func (s *share) remove(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(c)
}

// drop removes c from the share if it is still there. The caller holds s.mu.
func (s *share) drop(c *connection) {
	i := slices.Index(s.open, c)
	if i < 0 {
		return
	}
	s.open = slices.Delete(s.open, i, i+1)
	c.holder.open--
	if c.holder.open == 0 {
		delete(s.holders, c.holder.client)
	}
	if c.cancel != nil {
		c.cancel()
	}
}

// attach has cancel called when c leaves the share, at once if it has left.
func (s *share) attach(c *connection, cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.cancel = cancel
	if !slices.Contains(s.open, c) {
		cancel()
	}
}

// mark records whether a request of c is being answered.
func (s *share) mark(c *connection, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.busy = busy
}

// pace admits a number of requests each second, in the order of their arrival. Only the
// first one takes tokens from the limiter, so clients that have given up use none.
type pace struct {
	turn    chan struct{}
	limiter *rate.Limiter
}

func newPace(perSecond int) *pace {
	return &pace{turn: make(chan struct{}, 1), limiter: rate.NewLimiter(rate.Limit(perSecond), perSecond)}
}

func (p *pace) wait(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
		return p.limiter.Wait(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}
