package rule

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"
)

func TestTypes(t *testing.T) {
	for _, tt := range []struct {
		text    string
		id, len uint32
		order   uint32
	}{
		{"ipv4_addr", 7, 4, 2}, {"ipv6_addr", 8, 16, 2}, {"ifname", 41, 16, 1}, {"nf_proto", 2, 1, 0},
		{"inet_service", 13, 2, 2}, {"inet_proto", 12, 1, 0}, {"mark", 19, 4, 1},
		{"ipv4_addr . mark", 7<<6 | 19, 8, 0}, {"mark . inet_service", 19<<6 | 13, 8, 0}, {"ipv6_addr . inet_service", 8<<6 | 13, 20, 0},
		{"ipv6_addr . ipv6_addr . inet_proto . inet_service", 0x20830d, 40, 0},
	} {
		typ, err := ParseType(tt.text)
		if err != nil {
			t.Fatal(err)
		}
		if typ.ID() != tt.id || typ.Len() != tt.len || typ.ByteOrder() != tt.order || typ.String() != tt.text {
			t.Errorf("%s: ID %#x, length %d, order %d, %s", tt.text, typ.ID(), typ.Len(), typ.ByteOrder(), typ)
		}
	}
	for _, text := range []string{"", " ", "ipv4_addr.mark", "ipv4_addr . ", "ct_state", "integer", "mark . mark . mark . mark . mark . mark"} {
		if _, err := ParseType(text); err == nil {
			t.Errorf("type %q is accepted", text)
		}
	}
}

func mustType(t *testing.T, text string) Type {
	t.Helper()
	typ, err := ParseType(text)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

func TestKeys(t *testing.T) {
	native := func(n uint32) string { return hex.EncodeToString(binary.NativeEndian.AppendUint32(nil, n)) }
	for _, tt := range []struct {
		typ   string
		parts []string
		want  string // the key or the error
	}{
		{"ipv4_addr", []string{"10.0.0.1"}, "0a000001"},
		{"ipv6_addr", []string{"fd00::1"}, "fd000000000000000000000000000001"},
		{"nf_proto", []string{"ipv6"}, "0a"},
		{"inet_proto", []string{"47"}, "2f"},
		{"inet_service", []string{"8472"}, "2118"},
		{"mark", []string{"305419896"}, native(0x12345678)},
		{"ifname", []string{"cni0"}, "636e6930000000000000000000000000"},
		{"ipv4_addr . inet_service", []string{"10.0.0.1", "53"}, "0a00000100350000"},
		{"mark . inet_service", []string{"7", "109"}, native(7) + "006d0000"},
		{"ipv4_addr . ipv4_addr . inet_proto . inet_service", []string{"10.0.0.1", "10.0.0.2", "6", "80"}, "0a0000010a0000020600000000500000"},

		{"ipv4_addr", nil, `key [] has 0 parts, want 1 of type "ipv4_addr"`},
		{"ipv4_addr", []string{"10.0.0.1", "1"}, "has 2 parts, want 1"},
		{"ipv4_addr", []string{"fd00::1"}, `part 1 of key ["fd00::1"]: "fd00::1" is not of type ipv4_addr`},
		{"ipv4_addr", []string{"10.0.0.0/8"}, "is not of type ipv4_addr"},
		{"ipv6_addr", []string{"fe80::1%eth0"}, "is not of type ipv6_addr"},
		{"ipv4_addr . inet_service", []string{"10.0.0.1", "65536"}, `part 2 of key ["10.0.0.1" "65536"]: "65536" is not a number of type inet_service`},
		{"nf_proto", []string{"2"}, `"2" is not one of ipv4, ipv6`},
		{"mark", []string{""}, `"" is not a number`},
		{"mark", []string{"+1"}, `"+1" is not a number`},
		{"mark", []string{"1_0"}, `"1_0" is not a number`},
		{"ifname", []string{`a"b*`}, "6122622a000000000000000000000000"},
		{"ifname", []string{""}, "is empty"},
		{"ifname", []string{"sixteen--letters"}, "is too long"},
	} {
		key, err := mustType(t, tt.typ).Key(tt.parts)
		switch {
		case err != nil && !strings.Contains(err.Error(), tt.want), err == nil && hex.EncodeToString(key) != tt.want:
			t.Errorf("%s %q: got %x, %v, want %s", tt.typ, tt.parts, key, err, tt.want)
		}
	}
}

func TestIntervals(t *testing.T) {
	for _, tt := range []struct{ typ, part, start, end string }{
		{"ipv4_addr", "10.0.0.0/8", "0a000000", "0b000000"},
		{"ipv4_addr", "10.0.0.255", "0a0000ff", "0a000100"},
		{"ipv4_addr", "255.255.255.255", "ffffffff", ""},
		{"ipv4_addr", "0.0.0.0/0", "00000000", ""},
		{"ipv4_addr", "255.255.255.0/24", "ffffff00", ""},
		{"ipv6_addr", "fd00::/64", "fd000000000000000000000000000000", "fd000000000000010000000000000000"},
		{"ipv6_addr", "ffff::/16", "ffff0000000000000000000000000000", ""},
	} {
		start, end, err := mustType(t, tt.typ).Interval(tt.part)
		if err != nil || hex.EncodeToString(start) != tt.start || hex.EncodeToString(end) != tt.end || (end == nil) != (tt.end == "") {
			t.Errorf("%s: got %x, %x, %v", tt.part, start, end, err)
		}
	}
	for _, tt := range []struct{ typ, part, want string }{
		{"ipv4_addr", "10.0.0.1/8", "has bits after the prefix"},
		{"ipv4_addr", "fd00::/8", "is not a prefix of type ipv4_addr"},
		{"ipv4_addr", "x", `interval "x" is not a prefix of type ipv4_addr`},
		{"mark", "1", "is not a prefix of type mark"},
		{"ifname", "a", "is not a prefix of type ifname"},
		{"ipv4_addr . mark", "10.0.0.1", "has no intervals"},
	} {
		if _, _, err := mustType(t, tt.typ).Interval(tt.part); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.part, err, tt.want)
		}
	}
}

// FuzzKey checks that no key panics, and that keys have the length of their type.
func FuzzKey(f *testing.F) {
	f.Add("ipv4_addr . mark", "10.0.0.1", "5")
	f.Add("ifname", "cni0", "")
	f.Add("ipv6_addr", "fd00::/64", "")
	f.Fuzz(func(t *testing.T, typ, first, second string) {
		parsed, err := ParseType(typ)
		if err != nil {
			return
		}
		for _, parts := range [][]string{{first}, {first, second}} {
			if key, err := parsed.Key(parts); err == nil && len(key) != int(parsed.Len()) {
				t.Errorf("%s %q: %d bytes, want %d", typ, parts, len(key), parsed.Len())
			}
		}
		start, end, err := parsed.Interval(first)
		if err == nil && (len(start) != int(parsed.Len()) || end != nil && len(end) != len(start)) {
			t.Errorf("%s %q: %x, %x", typ, first, start, end)
		}
	})
}
