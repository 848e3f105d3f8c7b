package steer

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/knftables"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// fakeVerdicts keeps verdicts in the sets of a knftables.Fake, without timeouts and counters.
type fakeVerdicts struct{ fake *knftables.Fake }

// fakePort is the netlink port of commits of fakeVerdicts.
const fakePort = 1

func (v *fakeVerdicts) port() uint32 { return fakePort }

func (v *fakeVerdicts) remove(ctx context.Context, keys []elementKey) error {
	tx := v.fake.NewTransaction()
	for _, k := range keys {
		tx.Add(fakeElement(k)) // deleting a missing element is an error
		tx.Delete(fakeElement(k))
	}
	return v.fake.Run(ctx, tx)
}

func (v *fakeVerdicts) flush(ctx context.Context) error {
	tx := v.fake.NewTransaction()
	for _, set := range verdictSets {
		tx.Flush(&knftables.Set{Name: set.name})
	}
	return v.fake.Run(ctx, tx)
}

func (v *fakeVerdicts) deny(ctx context.Context, classes []packet.Class, _ time.Duration) (full int, err error) {
	tx := v.fake.NewTransaction()
	for _, c := range classes {
		tx.Add(verdictKey{c, true}.fakeElement())
	}
	return 0, v.fake.Run(ctx, tx)
}

func (v *fakeVerdicts) list(ctx context.Context, each func(RememberedVerdict)) error {
	for _, set := range verdictSets {
		listed, err := v.fake.ListElements(ctx, "set", set.name)
		if err != nil {
			return err
		}
		for _, e := range listed {
			if c, ok := parseClassKey(e.Key); ok {
				each(RememberedVerdict{Class: c, Denied: set.denied})
			}
		}
	}
	return nil
}

func (v *fakeVerdicts) renewed(ctx context.Context, each func(renewedKey)) error {
	for _, f := range families {
		listed, err := v.fake.ListElements(ctx, "set", familyName(renewedSet, f.ipv6))
		if err != nil {
			return err
		}
		for _, e := range listed {
			src, dst := netip.MustParseAddr(e.Key[0]), netip.MustParseAddr(e.Key[1])
			proto, _ := strconv.ParseUint(e.Key[2], 10, 8)
			sport, _ := strconv.ParseUint(e.Key[3], 10, 16)
			dport, _ := strconv.ParseUint(e.Key[4], 10, 16)
			key := slices.Concat(src.AsSlice(), dst.AsSlice(), []byte{byte(proto), 0, 0, 0, byte(sport >> 8), byte(sport), 0, 0, byte(dport >> 8), byte(dport), 0, 0})
			each(renewedKey{f.ipv6, string(key)})
		}
	}
	return nil
}

func fakeElement(k elementKey) *knftables.Element {
	if v, ok := k.(verdictKey); ok {
		return v.fakeElement()
	}
	p, _ := k.(renewedKey).opened()
	return &knftables.Element{Set: k.set(), Key: []string{p.Src.Addr().String(), p.Dst.Addr().String(),
		strconv.Itoa(int(p.Proto)), strconv.Itoa(int(p.Src.Port())), strconv.Itoa(int(p.Dst.Port()))}}
}

func (k verdictKey) fakeElement() *knftables.Element {
	return &knftables.Element{Set: k.set(), Key: []string{k.class.Src.String(), k.class.Dst.String(),
		strconv.Itoa(int(k.class.Proto)), strconv.Itoa(int(k.class.Port))}}
}

func parseClassKey(key []string) (packet.Class, bool) {
	if len(key) != 4 {
		return packet.Class{}, false
	}
	src, errSrc := netip.ParseAddr(key[0])
	dst, errDst := netip.ParseAddr(key[1])
	proto, errProto := strconv.ParseUint(key[2], 10, 8)
	port, errPort := strconv.ParseUint(key[3], 10, 16)
	return packet.Class{Src: src, Dst: dst, Proto: packet.Proto(proto), Port: uint16(port)}, errors.Join(errSrc, errDst, errProto, errPort) == nil
}
