package queuetest

import "sync"

// Outcome is what became of a packet.
type Outcome string

const (
	Waiting    Outcome = "waiting"     // without a verdict
	Accepted   Outcome = "accepted"    // by a verdict
	Dropped    Outcome = "dropped"     // by a verdict
	Bypassed   Outcome = "bypassed"    // accepted: no process listens, and the rule says bypass
	FailedOpen Outcome = "failed open" // accepted: there was no room, and the queue fails open
	NoListener Outcome = "no listener" // dropped: no process listens
	NotCopied  Outcome = "not copied"  // dropped: the copy mode is none
	QueueFull  Outcome = "queue full"  // dropped: the queue has reached its length
	BufferFull Outcome = "buffer full" // dropped: no room in the receive buffer
	Flushed    Outcome = "flushed"     // dropped while waiting
)

// Fate reports the outcome of one packet.
type Fate struct {
	done chan struct{}

	mu      sync.Mutex
	mark    uint32
	outcome Outcome
}

// Done is closed when the packet does not wait any longer.
func (f *Fate) Done() <-chan struct{} { return f.done }

// Outcome returns the current outcome.
func (f *Fate) Outcome() Outcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.outcome == "" {
		return Waiting
	}
	return f.outcome
}

// Mark returns the mark of the packet, as the verdict left it.
func (f *Fate) Mark() uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mark
}

func (f *Fate) setMark(mark uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mark = mark
}

func (f *Fate) end(o Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outcome = o
	close(f.done)
}
