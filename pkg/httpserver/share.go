package httpserver

import (
	"context"
	"net"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// share has the connections of some clients. What they do takes nothing from the clients of
// another share.
type share struct {
	closed               prometheus.Counter // connections that had or got no place
	requests, handshakes *pace

	mu      sync.Mutex
	open    []*connection // from the oldest on
	holders map[client]*holder
}

// holder has connections.
type holder struct {
	client client
	open   int
	// turn is held by the one connection of the client that waits for a pace, so that a
	// client does not get ahead of others by many connections.
	turn chan struct{}
}

func newShare(closed prometheus.Counter) *share {
	return &share{
		closed:     closed,
		requests:   newPace(requestRate),
		handshakes: newPace(handshakeRate),
		holders:    make(map[client]*holder),
	}
}

// admit returns a connection that counts for who, nil if there is no place for it. It may close
// another one.
func (s *share) admit(conn net.Conn, who client) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holders[who]
	if h == nil {
		h = &holder{client: who, turn: make(chan struct{}, 1)}
	}
	if h.open >= maxPerClient || len(s.open) >= maxConnections {
		s.closed.Inc()
		old := s.displaced(h)
		if old == nil {
			return nil
		}
		s.drop(old)
		_ = old.Conn.Close()
	}
	s.holders[who] = h // again, if its last one was dropped
	h.open++
	c := &connection{Conn: conn, share: s, holder: h}
	s.open = append(s.open, c)
	return c
}

// displaced returns the connection that is closed for a new one of h: the oldest without a
// request of a client that has most, or of h itself if that is at its limit. If there is none,
// it is the oldest of a client that will still have as many as h. Nil closes none.
func (s *share) displaced(h *holder) *connection {
	most := 0
	for _, other := range s.holders {
		most = max(most, other.open)
	}
	var busy *connection
	for _, c := range s.open {
		if c.holder.open < most || h.open == maxPerClient && c.holder != h {
			continue
		}
		if !c.busy {
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

// drop takes c out of the share, unless it is not there any more. The caller has locked s.
func (s *share) drop(c *connection) {
	i := slices.Index(s.open, c)
	if i < 0 {
		return
	}
	s.open = slices.Delete(s.open, i, i+1)
	if c.holder.open--; c.holder.open == 0 {
		delete(s.holders, c.holder.client)
	}
	if c.cancel != nil {
		c.cancel()
	}
}

// mark records whether a request of c is being answered.
func (s *share) mark(c *connection, busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.busy = busy
}

// pace lets some through each second, in the order in which they came. Only the first one takes
// from the limiter, so that nothing is used up by those who have gone meanwhile.
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
