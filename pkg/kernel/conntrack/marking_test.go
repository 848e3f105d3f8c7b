package conntrack

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// A denied live connection does not wait for the marks of finished ones, wherever it is in the table.
func TestLiveConnectionsAreMarkedFirst(t *testing.T) {
	b, f := newFake(t)
	for i := range 1000 {
		f.add(packet.UDP, fmt.Sprintf("10.0.0.7:%d", 1+i), "10.0.1.1:53")
	}
	live := map[string]func(*entry){
		"10.0.0.7:40001": func(e *entry) { e.tcpState = tcpEstablished },
		"10.0.0.7:40002": func(e *entry) { e.status |= statusOffloaded },
		"10.0.0.7:40003": func(e *entry) { e.original.proto, e.status = packet.UDP, statusAssured },
	}
	for src, edit := range live {
		edit(f.add(packet.TCP, src, "10.0.1.1:80"))
	}
	var first []uint16
	f.onRequest = func(r request) {
		if len(first) < len(live)+1 { // an offloaded one is marked and removed
			first = append(first, f.sourcePort(r.key))
		}
	}
	if err := runPass(t, b, always(Block, nil)); err != nil {
		t.Fatal(err)
	}
	slices.Sort(first)
	if first = slices.Compact(first); !slices.Equal(first, []uint16{40001, 40002, 40003}) {
		t.Errorf("the first requests are about the source ports %v", first)
	}
}

// An agent that starts knows no classes, and one that cannot override marks has to set them: before the rest of a
// large table, live connections, also those in one direction.
func TestLiveConnectionsAreListedFirst(t *testing.T) {
	deny := always(Block, nil)
	for name, tt := range map[string]struct {
		started bool
		change  Change
	}{
		"at the start":   {false, Change{All: true}},
		"newly selected": {true, Change{Opened: addrs("10.0.0.7", "fd00::7")}},
	} {
		b, f := newFake(t)
		for i := range 3 * pieceLen {
			f.add(packet.UDP, fmt.Sprintf("10.0.0.7:%d", 1+i), "10.0.1.1:53")
		}
		if tt.started {
			if err := runApply(t, b, always(Unselected, nil), Change{All: true}); err != nil {
				t.Fatal(err)
			}
		}
		var live []int
		for _, src := range []string{"10.0.0.7:40001", "[fd00::7]:40001"} {
			dst := map[bool]string{true: "10.0.1.1:9", false: "[fd00::1]:9"}[src[0] == '1']
			for _, status := range []uint32{0, statusSeenReply | statusAssured, statusSeenReply | statusOffload} {
				live = append(live, len(f.rows))
				f.add(packet.UDP, src, dst).status = status
			}
		}
		listed := 0
		f.onList = func(asked filter, _ int) {
			if asked.mask != 0 {
				return
			}
			listed++
			marks := f.marks()
			for _, i := range live {
				if listed == 1 && marks[i] != testMark {
					t.Errorf("%s: connection %d of %v is not marked before the table is listed", name, i, live)
				}
			}
		}
		if err := runApply(t, b, deny, tt.change); err != nil || listed == 0 {
			t.Errorf("%s: %d listed, %v", name, listed, err)
		}
	}
}

// A request costs more than a mark, so many marks are sent at once.
func TestManyEntriesAreFewMessages(t *testing.T) {
	const count = 1000
	fill := func(f *fakeTable) {
		for i := range count {
			f.add(packet.UDP, fmt.Sprintf("10.0.0.7:%d", 1+i), "10.0.1.1:53")
		}
	}
	b, f := newFake(t)
	fill(f)
	for _, v := range []Verdict{Block, Unblock} {
		f.messages, f.writes = 0, 0
		if err := runPass(t, b, always(v, nil)); err != nil || f.writes != count || f.messages > 1+count/maxRequests {
			t.Errorf("verdict %v: %d marks in %d messages, %v", v, f.writes, f.messages, err)
		}
	}
	r, f := newFakeRemover()
	fill(f)
	if err := r.Remove(testContext(t), addrs("10.0.0.7")); err != nil || f.writes != count || f.messages > 1+count/maxRequests {
		t.Errorf("%d removals in %d messages, %v", f.writes, f.messages, err)
	}
}

// Each result belongs to its request, also if the kernel refuses some of those that are sent together.
func TestKernelAnswersRequestsSentTogether(t *testing.T) {
	enterNamespace(t)
	k := realTable(t)
	var requests []request
	for i := range 2*maxRequests + 7 {
		c := direct(packet.UDP, fmt.Sprintf("10.0.0.7:%d", 1+i), "10.0.1.1:53")
		if i%3 > 0 {
			insert(t, k, c)
		}
		e, _ := decodeEntry(c.message(t))
		requests = append(requests, request{key: e.key, mark: testMark, mask: testMark})
	}
	for i, err := range k.change(requests) {
		if missing := i%3 == 0; missing != (err != nil) || missing && !errors.Is(err, unix.ENOENT) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	for first, mark := range marks(t, k) {
		if mark != testMark {
			t.Errorf("%s has the mark %#x", first, mark)
		}
	}
}
