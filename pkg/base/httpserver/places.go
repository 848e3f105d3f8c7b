package httpserver

import (
	"context"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// places are those that the connections of a group of clients may take.
type places struct {
	closed    prometheus.Counter
	requests  *pace // nil without a limit
	perClient int
	// replace has a new connection replace the oldest one also while that is answered.
	replace bool

	mu      sync.Mutex
	open    []*connection // oldest first
	clients map[client]*clientState
}

// clientState is what places know of a client.
type clientState struct {
	client client
	open   int
	// turn is held by the one connection of the client that waits for a pace, so that a client
	// gains nothing from many connections.
	turn chan struct{}
}

func newPlaces(closed prometheus.Counter, perClient int, replace bool) *places {
	return &places{
		closed:    closed,
		requests:  newPace(bounds.RequestRate),
		perClient: perClient,
		replace:   replace,
		clients:   make(map[client]*clientState),
	}
}

// admit reports whether a connection gets a place. It may close another connection to make room.
func (s *places) admit(c *connection, identity client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.clients[identity]
	if st == nil {
		st = &clientState{client: identity, turn: make(chan struct{}, 1)}
	}
	if st.open >= s.perClient || len(s.open) >= bounds.Connections {
		s.closed.Inc()
		old := s.displaced(st)
		if old == nil {
			return false
		}
		s.drop(old)
		_ = old.Conn.Close()
	}
	s.clients[identity] = st // displacing its last connection may have removed it
	st.open++
	c.places, c.state = s, st
	s.open = append(s.open, c)
	return true
}

// displaced returns the connection to close for a new one of st: the oldest idle connection
// of a client with the most connections, or of st itself if that is at its limit. If none is
// idle, it is the oldest of a client that will still have as many as st. With replace, connections
// count as idle. It returns nil if no connection may be closed.
func (s *places) displaced(st *clientState) *connection {
	most := 0
	for _, other := range s.clients {
		most = max(most, other.open)
	}
	var busy *connection
	for _, c := range s.open {
		if c.state.open < most || st.open == s.perClient && c.state != st {
			continue
		}
		if !c.busy || s.replace {
			return c
		}
		if busy == nil && st.open+1 < most {
			busy = c
		}
	}
	return busy
}

func (s *places) remove(c *connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(c)
}

// drop removes c from the places if it is still there. The caller holds s.mu.
func (s *places) drop(c *connection) {
	i := slices.Index(s.open, c)
	if i < 0 {
		return
	}
	s.open = slices.Delete(s.open, i, i+1)
	c.state.open--
	if c.state.open == 0 {
		delete(s.clients, c.state.client)
	}
	if c.cancel != nil {
		c.cancel()
	}
}

// attach has cancel called when c leaves its place, at once if it has left.
func (s *places) attach(c *connection, cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.cancel = cancel
	if !slices.Contains(s.open, c) {
		cancel()
	}
}

// mark records whether a request of c is being answered.
func (s *places) mark(c *connection, busy bool) {
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
