package steer

import (
	"net/netip"
	"reflect"
	"testing"
)

// filled returns Sets with the first or the second of two different values in field i.
func filled(t *testing.T, i int, second bool) Sets {
	t.Helper()
	var s Sets
	field := reflect.ValueOf(&s).Elem().Field(i)
	values := map[reflect.Type][2]any{
		reflect.TypeFor[[]netip.Addr]():     {[]netip.Addr{v4}, []netip.Addr{v6}},
		reflect.TypeFor[[]netip.Prefix]():   {[]netip.Prefix{netip.PrefixFrom(v4, 32)}, []netip.Prefix{netip.PrefixFrom(v4, 31)}},
		reflect.TypeFor[[]netip.AddrPort](): {[]netip.AddrPort{netip.AddrPortFrom(v4, 53)}, []netip.AddrPort{netip.AddrPortFrom(v4, 54)}},
		reflect.TypeFor[[]Owner]():          {[]Owner{{v4, 100}}, []Owner{{v4, 101}}},
		reflect.TypeFor[[]Forward]():        {[]Forward{{Sources: prefixes("10.8.0.0/24")}}, []Forward{{Links: []string{"a"}, Sources: prefixes("10.8.0.0/24")}}},
		reflect.TypeFor[[]string]():         {[]string{"a"}, []string{"b"}},
		reflect.TypeFor[[]uint16]():         {[]uint16{1}, []uint16{2}},
		reflect.TypeFor[[]uint8]():          {[]uint8{1}, []uint8{2}},
		reflect.TypeFor[uint64]():           {uint64(1), uint64(2)},
		reflect.TypeFor[bool]():             {true, false},
	}
	pair, ok := values[field.Type()]
	if !ok {
		t.Fatalf("field %s: add values of type %v to this test", reflect.TypeFor[Sets]().Field(i).Name, field.Type())
	}
	n := 0
	if second {
		n = 1
	}
	field.Set(reflect.ValueOf(pair[n]))
	return s
}

// Changes of a field that equal does not compare would not be written to the kernel.
func TestEqualComparesEveryField(t *testing.T) {
	for i := range reflect.TypeFor[Sets]().NumField() {
		name := reflect.TypeFor[Sets]().Field(i).Name
		if name == "Since" {
			continue
		}
		first, second := filled(t, i, false), filled(t, i, true)
		if first.equal(second) || second.equal(first) || first.equal(Sets{}) {
			t.Errorf("%s is not compared", name)
		}
		if !first.equal(filled(t, i, false)) {
			t.Errorf("%s: equal contents differ", name)
		}
	}
}
