package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// fakeTable behaves like the kernel's table: marks change under a mask, and connections may end
// between the listing and the change.
type fakeTable struct {
	mu       sync.Mutex // guards the fields below against Run
	rows     []entry
	next     uint32
	writes   int
	messages int // calls of change
	listed   int // number of listed entries
	dumps    int
	opened   int
	closed   int

	// crowd is added to the count of connections, because a small table is listed without filters.
	crowd int

	// filtering says how filters work for a family; without an entry they work correctly.
	filtering map[uint8]filtering

	onList    func(filter, int) // called before each entry of a listing with the number of earlier ones
	broken    error             // the listing ends with this error
	onRequest func(request)     // called before each request
	refused   error             // every change fails with this error
	onChange  func(*fakeTable)  // called before each change
}

// add adds a connection from src to dst, which is the destination after DNAT.
func (f *fakeTable) add(proto packet.Proto, src, dst string) *entry {
	f.next++
	e := entry{
		original: newSender(proto, src),
		reply:    newSender(proto, dst),
		key:      key{family: familyOf(newSender(proto, src).addr), tuple: binary.BigEndian.AppendUint32(nil, f.next)},
		replies:  binary.BigEndian.AppendUint32(nil, ^f.next),
		status:   statusSeenReply, // as most entries: finished
	}
	f.rows = append(f.rows, e)
	return &f.rows[len(f.rows)-1]
}

func newSender(proto packet.Proto, s string) sender {
	if a, err := netip.ParseAddr(s); err == nil {
		return sender{addr: a, proto: proto}
	}
	a := netip.MustParseAddrPort(s)
	return sender{addr: a.Addr(), port: a.Port(), hasPorts: true, proto: proto}
}

func (f *fakeTable) entries(asked filter) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		f.mu.Lock()
		rows := slices.Clone(f.rows)
		if asked.mask == 0 {
			f.dumps++ // of all connections, live or not
		}
		f.mu.Unlock()
		buffer := make([]byte, 4) // reused: an entry is valid until the next one
		count := 0
		for i, e := range rows {
			if !f.lists(asked, e) {
				continue
			}
			var onList func(filter, int)
			f.edit(func() { onList = f.onList })
			if onList != nil {
				onList(asked, count)
			}
			count++
			f.edit(func() {
				f.listed++
				if i < len(f.rows) && slices.Equal(f.rows[i].key.tuple, e.key.tuple) {
					e.mark = f.rows[i].mark // the current mark
				}
			})
			copy(buffer, e.key.tuple)
			e.key.tuple = buffer
			if !yield(e, nil) {
				return
			}
		}
		if f.broken != nil {
			yield(entry{}, f.broken)
		}
	}
}

// filtering says how a kernel filters connections.
type filtering uint8

const (
	correct  filtering = iota
	ignored            // kernels before 5.9
	inverted           // later ones, for IPv6
)

func (f *fakeTable) lists(asked filter, e entry) bool {
	if asked.family != unix.AF_UNSPEC && asked.family != e.key.family {
		return false
	}
	if e.status&asked.mask != asked.status {
		return false
	}
	switch how := f.filtering[asked.family]; {
	case !asked.end.IsValid(), how == ignored:
		return true
	case how == inverted:
		return !asked.has(e)
	}
	return asked.has(e)
}

func (f *fakeTable) count() (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.rows) + f.crowd, nil
}

func (f *fakeTable) change(requests []request) (results []error) {
	f.edit(func() { f.messages++ })
	for _, r := range requests {
		if f.onRequest != nil {
			f.onRequest(r)
		}
		if r.remove {
			results = append(results, f.remove(r.key))
		} else {
			results = append(results, f.setMark(r.key, r.mark, r.mask))
		}
	}
	return results
}

func (f *fakeTable) setMark(k key, mark, mask uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onChange != nil {
		f.onChange(f)
	}
	f.writes++
	if f.refused != nil {
		return f.refused
	}
	i := slices.IndexFunc(f.rows, func(e entry) bool { return slices.Equal(e.key.tuple, k.tuple) })
	if i < 0 {
		return unix.ENOENT
	}
	f.rows[i].mark = f.rows[i].mark&^mask ^ mark
	return nil
}

func (f *fakeTable) remove(k key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.writes++
	if f.refused != nil {
		return f.refused
	}
	i := slices.IndexFunc(f.rows, func(e entry) bool { return slices.Equal(e.key.tuple, k.tuple) })
	if i < 0 {
		return unix.ENOENT
	}
	f.rows = slices.Delete(f.rows, i, i+1)
	return nil
}

// create adds a connection unless one of its tuples is tracked, like the kernel.
func (f *fakeTable) create(r replacement) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.onChange != nil {
		f.onChange(f)
	}
	f.writes++
	if f.refused != nil {
		return f.refused
	}
	if slices.ContainsFunc(f.rows, func(e entry) bool { return slices.Equal(e.key.tuple, r.tuple) || slices.Equal(e.key.tuple, r.replies) }) {
		return unix.EEXIST
	}
	f.rows = append(f.rows, entry{key: r.key, replies: r.replies, status: r.status &^ statusOffloaded, mark: r.mark})
	return nil
}

// copy returns the connections, which Run may change meanwhile.
func (f *fakeTable) copy() (rows []entry) {
	f.edit(func() { rows = slices.Clone(f.rows) })
	return rows
}

// sourcePort returns the source port of the connection with key k, 0 if there is none.
func (f *fakeTable) sourcePort(k key) uint16 {
	for _, e := range f.rows {
		if slices.Equal(e.key.tuple, k.tuple) {
			return e.original.port
		}
	}
	return 0
}

func (f *fakeTable) close() { f.edit(func() { f.closed++ }) }

// edit changes the table while a Blocker runs.
func (f *fakeTable) edit(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// marks returns the marks of all connections, in order.
func (f *fakeTable) marks() []uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	var marks []uint32
	for _, e := range f.rows {
		marks = append(marks, e.mark)
	}
	return marks
}

// newFake returns a Blocker with an empty table, on a node with the addresses 192.0.2.1 and
// 2001:db8::1.
func newFake(t testing.TB) (*Blocker, *fakeTable) {
	t.Helper()
	b, err := New(Config{Mark: testMark, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeTable{crowd: fewEntries}
	b.prepare = func(int) error { return nil }
	b.open = func(ctx context.Context) (table, error) {
		if ctx.Err() != nil {
			return nil, errors.New("opened too late")
		}
		f.edit(func() { f.opened++ })
		return f, nil
	}
	b.count = f.count
	b.cpuTime = func() time.Duration { return time.Since(b.created) } // no other thread has the CPU
	b.nodeAddrs = func() (addrSet, error) {
		return addrSet{netip.MustParseAddr("192.0.2.1"): {}, netip.MustParseAddr("2001:db8::1"): {}}, nil
	}
	return b, f
}

func testContext(t testing.TB) context.Context {
	_, ctx := ktesting.NewTestContext(t)
	return ctx
}

// always returns an Evaluator that decides v, and records the packets.
func always(v Verdict, evaluated *[]string) Evaluator {
	return func(p packet.Packet, toHost bool) Verdict {
		if evaluated != nil {
			s := p.String()
			if toHost {
				s += " (the node)"
			}
			*evaluated = append(*evaluated, s)
		}
		return v
	}
}

// runPass makes a pass with this Evaluator.
func runPass(t testing.TB, b *Blocker, evaluate Evaluator) error {
	b.evaluator = evaluate
	return b.pass(testContext(t))
}

// runApply applies a change.
func runApply(t testing.TB, b *Blocker, evaluate Evaluator, change Change) error {
	_, err := b.apply(testContext(t), evaluate, change)
	return err
}
