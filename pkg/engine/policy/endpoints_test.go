package policy

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func numbered(i int, v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 5: byte(i >> 12), 13: byte(i >> 8 & 15), 15: byte(i)})
	}
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

func TestEndpointsAreAMapWhoseOldStatesStay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 0))
	type state struct {
		endpoints Endpoints
		want      map[netip.Addr]*Endpoint
	}
	var now Endpoints
	want := map[netip.Addr]*Endpoint{}
	var states []state
	for range 60 {
		edit := now.Edit()
		for range r.IntN(400) {
			a, e := numbered(r.IntN(900), r.IntN(2) == 0), &Endpoint{}
			if r.IntN(3) == 0 {
				e = nil
				delete(want, a)
			} else {
				want[a] = e
			}
			edit.Set(a, e)
			if edit.At(a) != e {
				t.Fatalf("the edit has %p at %v, want %p", edit.At(a), a, e)
			}
		}
		now = edit.Done()
		states = append(states, state{now, maps.Clone(want)})
	}
	for i, s := range states {
		if got := maps.Collect(s.endpoints.All()); !maps.Equal(got, s.want) || s.endpoints.Len() != len(s.want) {
			t.Fatalf("state %d has %d endpoints (Len %d), want %d", i, len(got), s.endpoints.Len(), len(s.want))
		}
		for n := range 900 {
			for _, v6 := range []bool{false, true} {
				if a := numbered(n, v6); s.endpoints.At(a) != s.want[a] {
					t.Fatalf("state %d: %v", i, a)
				}
			}
		}
	}
}

func TestAChangeOfOneEndpointCopiesLittle(t *testing.T) {
	e := &Endpoint{}
	for _, n := range []int{1_000, 100_000} {
		table := many(n)
		edit := table.Edit()
		i := 0
		if allocs := testing.AllocsPerRun(100, func() {
			i += 97
			edit.Set(numbered(i%n, false), e)
		}); allocs > 3 { // chunk, its owned shards, shard
			t.Errorf("%d endpoints: %v allocations", n, allocs)
		}
		longest := 0
		for _, c := range table.chunks {
			for _, s := range c {
				longest = max(longest, len(s))
			}
		}
		if longest > 8*perShard {
			t.Errorf("%d endpoints: one shard has %d", n, longest)
		}
	}
}

func many(n int) Endpoints {
	var none Endpoints
	edit := none.Edit()
	for i := range n {
		edit.Set(numbered(i, false), &Endpoint{})
	}
	return edit.Done()
}
