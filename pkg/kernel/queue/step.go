package queue

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// step receives a batch if the socket is readable, retries pending packets if they are due, and sends
// the verdicts. It reports whether there was anything to receive. It closes a socket that does not
// work.
func (q *queue) step(batch []Message, readable bool) (received bool) {
	var err error
	if readable {
		received, err = q.receive(batch)
	}
	if err == nil && !q.retryAt.IsZero() {
		q.retryPending(time.Now())
	}
	if err == nil {
		err = q.flush()
	}
	if err != nil {
		q.fail(err)
	}
	return received && err == nil
}

// stop makes the kernel queue no further packets, and decides the pending ones.
func (q *queue) stop() {
	if err := q.sock.Send(appendCopyMode(nil, q.number, 0, copyNone)); err != nil {
		q.fail(fmt.Errorf("configure queue %d: %w", q.number, err))
		return
	}
	q.closePending()
}

// receive receives a batch of datagrams and decides their packets. It reports whether there were any,
// including datagrams lost because the receive buffer was full.
func (q *queue) receive(batch []Message) (received bool, err error) {
	n, lost, err := q.receiveBatch(batch)
	if err != nil {
		return false, err
	}
	if lost {
		q.metrics.enobufs.Inc() // the kernel counts the lost packets as user dropped
	}
	for _, m := range batch[:n] {
		q.datagram(m.Buf[:m.N])
	}
	if q.failure != nil {
		q.failed(q.logger, opConfigure, q.failure)
		return false, q.failure
	}
	if q.configured {
		q.succeeded(opConfigure)
	}
	return lost || n > 0, nil
}

// receiveBatch returns the number of received datagrams, and whether some before them were lost.
func (q *queue) receiveBatch(batch []Message) (n int, lost bool, err error) {
	pause := firstPause
	for attempt := 1; ; attempt++ {
		n, err = q.sock.Receive(batch)
		lost = errors.Is(err, unix.ENOBUFS)
		if err == nil || lost {
			q.succeeded(opReceive)
			return n, lost, nil
		}
		q.failed(q.logger, opReceive, err)
		if attempt == attempts {
			return 0, false, fmt.Errorf("receive from queue %d: %w", q.number, err)
		}
		time.Sleep(pause)
		pause *= 2
	}
}

// flush sends all verdicts in one write. If that fails, it sends them one by one, which succeeds where
// the write was too long or the kernel lacked the memory for it. If the kernel had already handled a
// verdict, it reports the packet as gone.
func (q *queue) flush() error {
	if len(q.out) == 0 {
		return nil
	}
	err := q.sock.Send(q.out)
	pause := firstPause
	for attempt := 2; err != nil && attempt <= attempts; attempt++ {
		q.failed(q.logger, opSend, err)
		time.Sleep(pause)
		pause *= 2
		err = q.sendEach()
	}
	if err != nil {
		q.failed(q.logger, opSend, err)
		return fmt.Errorf("send verdicts of queue %d: %w", q.number, err)
	}
	q.succeeded(opSend)
	q.countSent(q.unsent)
	q.out, q.unsent = q.out[:0], [2]uint64{}
	return nil
}

// sendEach sends the verdicts one by one, up to the first one that cannot be sent.
func (q *queue) sendEach() error {
	var sent [2]uint64
	var err error
	rest := q.out
	for len(rest) > 0 && err == nil {
		m, remaining, _ := nextMessage(rest)
		if err = q.sock.Send(rest[:len(rest)-len(remaining)]); err == nil {
			sent[q.counted(verdictOf(m))]++
			rest = remaining
		}
	}
	q.countSent(sent)
	for v := range sent {
		q.unsent[v] -= sent[v]
	}
	q.out = append(q.out[:0], rest...)
	return err
}

// countSent counts answered packets by verdict.
func (q *queue) countSent(n [2]uint64) {
	q.answered.Add(n[verdictDrop] + n[verdictAccept])
	q.metrics.dropped.Add(float64(n[verdictDrop]))
	q.metrics.accepted.Add(float64(n[verdictAccept]))
}
