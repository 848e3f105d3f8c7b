package queuetest

import (
	"errors"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/queue"
)

// messageCharge is how many bytes of the receive buffer the real kernel charges for the message of
// a small packet.
const messageCharge = 820

// instance is a bound queue and its socket. Kernel.mu guards its fields.
type instance struct {
	kernel  *Kernel
	cfg     queue.Config
	stat    queue.Stat // without Waiting
	waiting map[uint32]*Fate
	inbox   [][]byte // the receive buffer
	overrun bool     // a message found no room
	closed  bool
}

// enqueue queues p. Its checks have the same order as in the real kernel.
func (q *instance) enqueue(p Packet, f *Fate) {
	switch {
	case q.stat.CopyMode == copyNone:
		f.end(NotCopied)
	case len(q.waiting) >= int(q.cfg.MaxLen):
		if q.cfg.FailOpen {
			f.end(FailedOpen)
			return
		}
		q.stat.QueueDropped++
		f.end(QueueFull)
	default:
		q.stat.PacketID++
		if q.deliver(encodePacket(q.stat, p)) {
			q.waiting[q.stat.PacketID] = f
			return
		}
		if q.cfg.FailOpen {
			f.end(FailedOpen)
			return
		}
		q.stat.UserDropped++
		f.end(BufferFull)
	}
}

// deliver puts a datagram into the receive buffer. Without room it reports false, and Receive
// reports ENOBUFS.
func (q *instance) deliver(datagram []byte) bool {
	defer q.kernel.wake()
	if len(q.inbox)*messageCharge > 2*q.cfg.ReceiveBuffer { // the real kernel doubles SO_RCVBUF, too
		q.overrun = true
		return false
	}
	q.inbox = append(q.inbox, datagram)
	return true
}

// flush drops all waiting packets.
func (q *instance) flush() {
	for id, f := range q.waiting {
		delete(q.waiting, id)
		f.end(Flushed)
	}
}

// readable reports whether Receive has something to return.
func (q *instance) readable() bool {
	fault := q.kernel.faults[call{q.stat.Number, Receive}]
	return q.closed || q.overrun || len(q.inbox) > 0 || fault != nil && fault.left > 0
}

// Receive implements queue.Socket.
func (q *instance) Receive(ms []queue.Message) (int, error) {
	q.kernel.mu.Lock()
	defer q.kernel.mu.Unlock()
	if q.closed {
		return 0, unix.EBADF
	}
	if err := q.kernel.faultLocked(q.stat.Number, Receive); err != nil {
		return 0, err
	}
	if q.overrun {
		q.overrun = false
		return 0, unix.ENOBUFS
	}
	n := min(len(ms), len(q.inbox))
	for i, datagram := range q.inbox[:n] {
		ms[i].N = copy(ms[i].Buf, datagram)
	}
	q.inbox = q.inbox[n:]
	return n, nil
}

// Send implements queue.Socket.
func (q *instance) Send(msgs []byte) error {
	q.kernel.mu.Lock()
	defer q.kernel.mu.Unlock()
	if q.closed {
		return unix.EBADF
	}
	q.kernel.writes[q.stat.Number]++
	if err := q.kernel.faultLocked(q.stat.Number, Send); err != nil {
		return err
	}
	partly := q.kernel.faultLocked(q.stat.Number, SendPartly)
	for len(msgs) > 0 {
		m, rest, err := decodeRequest(msgs)
		if err != nil {
			return err
		}
		q.request(m)
		msgs = rest
		if partly != nil {
			return partly
		}
	}
	return q.kernel.faultLocked(q.stat.Number, SendWholly)
}

// request handles one message, and answers it if an acknowledgement is requested or if it failed.
func (q *instance) request(m request) {
	var errno unix.Errno
	switch {
	case m.queue != q.stat.Number:
		errno = unix.ENODEV
	case m.verdict != nil:
		if errno = q.refusal(Verdict); errno == 0 {
			errno = q.verdict(*m.verdict)
		}
	case m.params != nil:
		if errno = q.refusal(Configure); errno == 0 {
			q.configure(*m.params)
		}
	default:
		errno = unix.EINVAL
	}
	if errno != 0 || m.acknowledge {
		q.deliver(encodeError(errno, m.header))
	}
}

func (q *instance) configure(p params) {
	q.stat.CopyMode, q.stat.CopyRange = p.mode, p.copyRange
	close(q.kernel.changed)
	q.kernel.changed = make(chan struct{})
}

func (q *instance) verdict(v verdict) unix.Errno {
	f := q.waiting[v.id]
	if f == nil {
		return unix.ENOENT
	}
	delete(q.waiting, v.id)
	if v.mark != nil {
		f.setMark(*v.mark)
	}
	if v.accept {
		f.end(Accepted)
	} else {
		f.end(Dropped)
	}
	return 0
}

// Close implements queue.Socket.
func (q *instance) Close() error {
	q.kernel.mu.Lock()
	defer q.kernel.mu.Unlock()
	if q.closed {
		return errors.New("socket is closed")
	}
	q.closed = true
	q.flush()
	delete(q.kernel.queues, q.stat.Number)
	return q.kernel.faultLocked(q.stat.Number, Close)
}
