package nlattr

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
)

// attribute is a decoded attribute; its type has 14 bits.
type attribute struct {
	Type  uint16
	Value []byte
}

// encode returns the attributes as the kernel sends them, padded.
func encode(t testing.TB, attributes ...attribute) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	for _, a := range attributes {
		ae.Bytes(a.Type, a.Value)
	}
	b, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// read returns the attributes that Each and All find, and the result of Each.
func read(b []byte) (each, all []attribute, ok bool) {
	ok = Each(b, func(typ uint16, value []byte) bool {
		each = append(each, attribute{typ, value})
		return true
	})
	for typ, value := range All(b) {
		all = append(all, attribute{typ, value})
	}
	return each, all, ok
}

func TestRead(t *testing.T) {
	one, two := attribute{1, []byte{1, 2, 3, 4}}, attribute{2, []byte{5}}
	nested := encode(t, one)
	binary.NativeEndian.PutUint16(nested[2:], 1|netlink.Nested|netlink.NetByteOrder)
	short := encode(t, one)
	binary.NativeEndian.PutUint16(short, headerLen-1)
	long := encode(t, one)
	binary.NativeEndian.PutUint16(long, uint16(len(long)+1))
	for _, tt := range []struct {
		name string
		b    []byte
		want []attribute
		ok   bool
	}{
		{"nothing", nil, nil, true},
		{"one", encode(t, one), []attribute{one}, true},
		{"padded", encode(t, two, one), []attribute{two, one}, true},
		{"the last without padding", encode(t, one, two)[:8+5], []attribute{one, two}, true},
		{"without a value", encode(t, attribute{3, []byte{}}), []attribute{{3, []byte{}}}, true},
		{"flags of the type", nested, []attribute{one}, true},
		{"part of a header", encode(t, one, two)[:8+3], []attribute{one}, false},
		{"part of a value", encode(t, one)[:7], nil, false},
		{"a length below that of the header", short, nil, false},
		{"a length beyond the end", long, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			each, all, ok := read(tt.b)
			if ok != tt.ok {
				t.Errorf("Each: %v, want %v", ok, tt.ok)
			}
			if diff := cmp.Diff(tt.want, each); diff != "" {
				t.Errorf("Each (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, all); diff != "" {
				t.Errorf("All (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadingStopsEarly(t *testing.T) {
	b := encode(t, attribute{1, []byte{1}}, attribute{2, []byte{2}}, attribute{3, []byte{3}})
	var seen []uint16
	if Each(b, func(typ uint16, _ []byte) bool {
		seen = append(seen, typ)
		return typ != 2
	}) {
		t.Error("Each reports true for an attribute that was refused")
	}
	for typ := range All(b) {
		seen = append(seen, typ)
		if typ == 2 {
			break
		}
	}
	if diff := cmp.Diff([]uint16{1, 2, 1, 2}, seen); diff != "" {
		t.Errorf("types seen (-want +got):\n%s", diff)
	}
}

func TestReadingDoesNotAllocate(t *testing.T) {
	b := encode(t, attribute{1, []byte{1}}, attribute{2, []byte{2}})
	var sum int
	if n := testing.AllocsPerRun(100, func() {
		for typ := range All(b) {
			sum += int(typ)
		}
		Each(b, func(typ uint16, _ []byte) bool { sum += int(typ); return true })
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzRead compares well-formed attributes with those that the library decodes.
func FuzzRead(f *testing.F) {
	f.Add(encode(f, attribute{1, []byte{1, 2, 3}}, attribute{2, []byte{1, 2, 3, 4}}))
	f.Add([]byte{5, 0, 1, 0x80, 0})
	f.Add([]byte{3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		each, all, ok := read(b)
		if !cmp.Equal(each, all) {
			t.Errorf("Each reads %v and All %v", each, all)
		}
		for _, a := range each {
			if !bytes.Contains(b, a.Value) {
				t.Errorf("%x is no part of %x", a.Value, b)
			}
		}
		if !ok {
			return // the library reads a length of 0 as an attribute
		}
		ad, err := netlink.NewAttributeDecoder(b)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; ad.Next(); i++ {
			if ad.Type() != each[i].Type || !bytes.Equal(ad.Bytes(), each[i].Value) {
				t.Errorf("attribute %d is %v, the library reads %d %x", i, each[i], ad.Type(), ad.Bytes())
			}
		}
		if err := ad.Err(); err != nil {
			t.Error(err)
		}
	})
}
