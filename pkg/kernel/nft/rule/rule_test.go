package rule

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// setTypes returns the types of the sets in these tests.
func setTypes(name string) (Type, bool) {
	typ, err := ParseType(map[string]string{
		"v4": "ipv4_addr", "v6": "ipv6_addr", "marks": "mark", "services": "ipv4_addr . inet_service", "owners": "ipv4_addr . mark",
	}[name])
	return typ, err == nil
}

func compileInet(text string) (Rule, error) {
	return Compile(text, Options{Family: knftables.InetFamily, Set: setTypes})
}

func TestErrorsNameTokenAndReason(t *testing.T) {
	for _, tt := range []struct{ rule, want string }{
		{"", "the rule is empty"},
		{"  ", "the rule is empty"},
		{"frobnicate", `column 1, "frobnicate": no statement and no selector of family inet begins with it`},
		{"meta frob 1", `column 6, "frob": no selector of family inet begins with "meta frob"`},
		{"ip", `column 3, end of rule: no selector`},
		{"ip saddr", `column 9, end of rule: "" is not of type ipv4_addr`},
		{"vlan id 0", `column 1, "vlan": no statement and no selector of family inet`},
		{"ip saddr 10.0.0.1; drop", `column 18, ";": is not a character of a rule`},
		{"ip saddr\t10.0.0.1", `"\t": is not a character of a rule`},
		{`iifname "eth0" accept`, `column 9, "\"": is not a character of a rule`},
		{"iifname eth* accept", `column 12, "*": is not a character of a rule`},
		{"ip sáddr 10.0.0.1", `"á": is not a character of a rule`},
		// Values.
		{"ip saddr fd00::1 drop", `column 10, "fd00::1": "fd00::1" is not of type ipv4_addr`},
		{"ip6 saddr 10.0.0.1 drop", `column 11, "10.0.0.1": "10.0.0.1" is not of type ipv6_addr`},
		{"ip saddr example.org drop", `column 10, "example.org"`},
		{"udp dport 65536 drop", `column 11, "65536": "65536" is above 65535`},
		{"udp dport 053 drop", "octal"},
		{"udp dport domain drop", `column 11, "domain": "domain" is not a number`},
		{"th dport -1 drop", `column 10, "-1"`},
		{"meta mark 0x100000000 drop", `"0x100000000" is above 4294967295`},
		{"meta mark 99999999999999999999 drop", `is above 4294967295`},
		{"meta mark 0xg drop", `"0xg" is not a number`},
		{"meta l4proto frob drop", `column 14, "frob": "frob" is not a number (type inet_proto)`},
		{"meta l4proto 256 drop", `is above 255`},
		{"meta nfproto arp drop", `column 14, "arp": "arp" is not one of ipv4, ipv6`},
		{"ct state old drop", `column 10, "old": "old" is not one of established, invalid, new, related, untracked`},
		{"ct state 2 drop", `"2" is not one of`},
		{"ct direction forth drop", `"forth" is not one of original, reply`},
		{"fib saddr type here drop", `"here" is not one of anycast, broadcast`},
		{"iif eth0 drop", `column 5, "eth0": "eth0" is not a number`},
		{"iifname sixteen-letters- drop", "too long for the name of an interface"},
		{"iifname a/b drop", `column 9, "a/b"`},
		{"ct state new, drop", `column 15, "drop": "drop" is not one of`},
		{"meta mark 1,2 drop", `column 12, ",": no statement and no selector`},
		// Operators.
		{"ip saddr & 1 == 1 drop", `column 10, "&": only marks, flags of TCP and the status of connections can be masked`},
		{"meta mark & 1 drop", `column 15, "drop": want == or != here`},
		{"meta mark & 1 1 drop", `column 15, "1": want == or != here`},
		{"meta mark == != 1 drop", `column 14, "!="`},
		{"udp dport != 1-2 drop", `column 14, "1-2": a range cannot be compared with !=`},
		{"udp dport 2-1 drop", `column 11, "2-1": range "2-1" is not ascending`},
		{"udp dport 1- drop", `column 11, "1-"`},
		{"meta mark 1-2 drop", "type mark has no intervals"},
		{"meta nfproto ipv4-ipv6 drop", "type nf_proto has no intervals"},
		{"ip saddr 10.0.0.0/8 drop", `column 10, "10.0.0.0/8": a prefix of whole bytes is not supported outside sets`},
		{"ip saddr 10.0.0.1/32 drop", `a prefix of whole bytes`},
		{"ip saddr 0.0.0.0/0 drop", `a prefix of whole bytes`},
		{"ip saddr 10.0.0.1/9 drop", `has bits after the prefix`},
		{"ip saddr 10.0.0.0/33 drop", `"10.0.0.0/33" is not a prefix of type ipv4_addr`},
		{"ip saddr fe80::/10 drop", `"fe80::/10" is not a prefix of type ipv4_addr`},
		{"ip saddr 1.0.0.0/7-2.0.0.0/7 drop", `column 10`},
		{"udp dport 1/1 drop", `column 11, "1/1"`},
		// Sets.
		{"ip saddr @none drop", `column 10, "@none": there is no such set`},
		{"ip saddr @ drop", `column 10, "@": there is no such set`},
		{"ip saddr @marks drop", `column 10, "@marks": the set has keys of type "mark", but the rule looks up type "ipv4_addr"`},
		{"meta mark @v4 drop", `column 11, "@v4": the set has keys of type "ipv4_addr", but the rule looks up type "mark"`},
		{"iif @marks drop", `looks up type "iface_index"`},
		{"ip saddr . th dport @owners drop", `"ipv4_addr . inet_service"`},
		{"ip saddr . th dport @v4 drop", `column 21, "@v4"`},
		{"ip saddr . th dport 1 drop", `column 21, "1": want the name of a set here`},
		{"ip saddr . @v4 drop", `column 12, "@v4": no statement and no selector`},
		{"ip saddr . th dport { 1 } drop", `column 21, "{": want the name of a set here`},
		{"ip saddr . th dport & 1 == 1 drop", `column 21, "&": only marks, flags of TCP and the status of connections can be masked`},
		{"ip6 saddr . ip6 daddr . ip6 saddr . ip6 daddr . ip6 saddr @v4 drop", "the concatenation is too long"},
		{"iif . iif . iif . iif . iif . iif @v4 drop", `column 31, "iif": the concatenation is too long`},
		{"udp dport { } drop", `column 13, "}"`},
		{"udp dport { 1 } drop", `column 11, "{": the set has one value, which needs no braces`},
		{"udp dport { 1 2 } drop", `column 15, "2": want "," here`},
		{"udp dport { 1, 2", `end of rule: want "," here`},
		{"udp dport { 1, 1 } drop", `column 11, "{": two values of the set adjoin or overlap`},
		{"udp dport { 1-3, 4 } drop", `adjoin or overlap`},
		{"udp dport { 1-3, 2-4 } drop", `adjoin or overlap`},
		{"udp dport { 1, 65535-65535 } drop", `is not ascending`},
		{"udp dport { 1, 65530-65535 } drop", `an interval up to the last value is not supported`},
		{"udp dport { 1-2, 65536 } drop", `column 18, "65536"`},
		{"ct state { new, related } drop", `values of type ct_state are not supported in an anonymous set`},
		{"iifname { a, b } drop", `values of type ifname are not supported`},
		{"meta nfproto { ipv4, ipv6 } drop", `values of type nf_proto are not supported`},
		{"meta mark { 1-2, 5 } drop", "type mark has no intervals"},
		// Protocols.
		{"ip saddr @v4 ip6 saddr @v6 drop", `column 14, "ip6": needs "meta nfproto" to be ipv6, which conflicts with an earlier comparison in the rule`},
		{"meta nfproto ipv6 ip saddr @v4 drop", `column 19, "ip": needs "meta nfproto" to be ipv4`},
		{"ip saddr @v4 icmpv6 type 1 drop", `column 14, "icmpv6": needs "meta nfproto" to be ipv6`},
		{"meta l4proto tcp udp dport 1 drop", `column 18, "udp": needs "meta l4proto" to be udp`},
		{"ip protocol udp udp dport 1 drop", `column 17, "udp": needs "meta l4proto" to be udp`},
		{"ip6 nexthdr { tcp, udp } icmpv6 type 1 drop", `column 26, "icmpv6"`},
		{"meta l4proto tcp meta l4proto udp drop", `column 31, "udp": conflicts with an earlier comparison in the rule`},
		{"ip saddr 10.0.0.1 ip daddr 10.0.0.2 drop", `column 28, "10.0.0.2": the field adjoins`},
		{"th sport 1 th dport 2 drop", `the field adjoins`},
		// Statements.
		{"accept accept", `column 8, "accept": is never reached: "accept" ends the rule`},
		{"jump x drop", `column 8, "drop": is never reached: "jump" ends the rule`},
		{"queue to 1 accept", `column 12, "accept": is never reached`},
		{"goto", `column 5, end of rule: is not a name`},
		{"goto 1x", `column 6, "1x": is not a name`},
		{"jump @v4", `column 6, "@v4": is not a name`},
		{"counter", `end of rule: want "name" here`},
		{"counter drop", `column 9, "drop": want "name" here`},
		{"counter name {", `column 14, "{": is not a name`},
		{"queue", `want "to" here`},
		{"reject", `want "with" here`},
		{"reject with tcp reset", `column 1, "reject": needs "meta l4proto tcp" before it`},
		{"meta l4proto udp reject with tcp reset", `column 18, "reject": needs "meta l4proto tcp" before it`},
		{"reject with icmpx type no-route", `want "admin-prohibited" here`},
		{"ct reply ip saddr @v6 drop", `column 19, "@v6": the set has keys of type "ipv6_addr"`},
		{"queue to", `column 9, end of rule: "" is not a number`},
		{"queue num 1", `column 7, "num": want "to" here`},
		{"queue flags to 1", `column 13, "to": is not one of bypass, fanout`},
		{"queue flags bypass, to 1", `is not one of bypass, fanout`},
		{"queue flags fanout to 1", `column 23, "1": fanout needs a range of queues`},
		{"queue to 65536", `"65536" is above 65535`},
		{"queue to 3-2", `column 10, "3-2": the range is not ascending`},
		{"queue to 3-", `column 10, "3-": "" is not a number`},
		{"queue to 0-65535", "more than 65535 queues"},
		{"meta mark set 5", `column 15, "5": want "meta" here`},
		{"meta mark set ct mark & 1", `column 15, "ct": want "meta" here`},
		{"meta mark set meta mark ^ 1", `"^": is not a character of a rule`},
		{"meta mark set meta mark == 1", `column 25, "==": want & or | here`},
		{"meta mark set meta mark &", `end of rule`},
		{"ct state set ct state & 1", `column 1, "ct": cannot be set`},
		{"meta mark . ct mark set meta mark & 1", `column 1, "meta": cannot be set`},
		{"add v4 { ip saddr counter }", `column 5, "v4": want the name of a set here`},
		{"add @none { ip saddr counter }", `column 5, "@none": there is no such set`},
		{"add @v4 ip saddr counter", `column 9, "ip": want "{" here`},
		{"add @v4 { meta mark counter }", `column 5, "@v4": the set has keys of type "ipv4_addr", but the rule looks up type "mark"`},
		{"add @v4 { ip saddr }", `column 20, "}": want "limit" here`},
		{"add @v4 { ip saddr counter", `end of rule: want "}" here`},
		{"add @v4 { ip saddr counter counter }", `column 28, "counter": want "}" here`},
		{"add @v4 { ip saddr timeout 30 counter }", `column 28, "30": want seconds here, such as 30s`},
		{"add @v4 { ip saddr timeout 0s counter }", `column 28, "0s": "0" is not above 0`},
		{"add @v4 { ip saddr timeout 1m30s counter }", `"1m30" is not a number`},
		{"add @v4 { ip saddr limit rate 5/minute burst 5 packets }", `column 31, "5/minute": want a rate here`},
		{"add @v4 { ip saddr limit rate 0/second burst 5 packets }", `is not above 0`},
		{"add @v4 { ip saddr limit rate 5/second burst 0 packets }", `column 46, "0": "0" is not above 0`},
		{"add @v4 { ip saddr limit rate 5/second burst 5 bytes }", `column 48, "bytes": want "packets" here`},
		{"add @v4 { ip saddr limit rate over 5/second burst 5 packets }", `column 31, "over"`},
		{"ip6 saddr @v6 update @v4 { ip saddr counter }", `column 28, "ip": needs "meta nfproto" to be ipv4`},
	} {
		if _, err := compileInet(tt.rule); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s:\ngot  %v\nwant %s", tt.rule, err, tt.want)
		}
	}
}

func TestOnlyKnownFamiliesCompile(t *testing.T) {
	for _, family := range []knftables.Family{"", knftables.IPv4Family, knftables.NetDevFamily} {
		if _, err := Compile("accept", Options{Family: family, Set: setTypes}); err == nil {
			t.Errorf("a rule of family %q compiles", family)
		}
	}
}

func TestQueueStatementsBecomeTargets(t *testing.T) {
	for text, want := range map[string]string{
		"queue to 100":                         "6400010000000000",
		"queue flags bypass to 256":            "0001010001000000",
		"queue flags bypass,fanout to 100-103": "6400040003000000",
	} {
		r, err := compile(text, Options{Family: knftables.InetFamily, XTables: true}, binary.LittleEndian)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := r.String(), `target 1="NFQUEUE\x00" 2=00000003 3=`+want+"\n"; got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// Only marks, states and the like, and the info of targets are in host byte order.
func TestByteOrderOfTheMachine(t *testing.T) {
	const text = "ct state new udp dport 53 fib saddr type local meta mark & 0x12 != 0 iif { 1, 2 } queue to 100"
	for _, tt := range []struct {
		host binary.ByteOrder
		want string
	}{
		{binary.LittleEndian, `set 1 type "iface_index" 01000000 02000000
ct 2=00000000 1=00000001
bitwise 1=00000001 2=00000001 3=00000004 4=[ 1=08000000 ] 5=[ 1=00000000 ]
cmp 1=00000001 2=00000001 3=[ 1=00000000 ]
meta 2=00000010 1=00000001
cmp 1=00000001 2=00000000 3=[ 1=11 ]
payload 1=00000001 2=00000002 3=00000002 4=00000002
cmp 1=00000001 2=00000000 3=[ 1=0035 ]
fib 1=00000001 3=00000001 2=00000003
cmp 1=00000001 2=00000000 3=[ 1=02000000 ]
meta 2=00000003 1=00000001
bitwise 1=00000001 2=00000001 3=00000004 4=[ 1=12000000 ] 5=[ 1=00000000 ]
cmp 1=00000001 2=00000001 3=[ 1=00000000 ]
meta 2=00000004 1=00000001
lookup 2=00000001 1="__set%d\x00" 4=00000001
target 1="NFQUEUE\x00" 2=00000003 3=6400010000000000
`},
		{binary.BigEndian, `set 1 type "iface_index" 00000001 00000002
ct 2=00000000 1=00000001
bitwise 1=00000001 2=00000001 3=00000004 4=[ 1=00000008 ] 5=[ 1=00000000 ]
cmp 1=00000001 2=00000001 3=[ 1=00000000 ]
meta 2=00000010 1=00000001
cmp 1=00000001 2=00000000 3=[ 1=11 ]
payload 1=00000001 2=00000002 3=00000002 4=00000002
cmp 1=00000001 2=00000000 3=[ 1=0035 ]
fib 1=00000001 3=00000001 2=00000003
cmp 1=00000001 2=00000000 3=[ 1=00000002 ]
meta 2=00000003 1=00000001
bitwise 1=00000001 2=00000001 3=00000004 4=[ 1=00000012 ] 5=[ 1=00000000 ]
cmp 1=00000001 2=00000001 3=[ 1=00000000 ]
meta 2=00000004 1=00000001
lookup 2=00000001 1="__set%d\x00" 4=00000001
target 1="NFQUEUE\x00" 2=00000003 3=0064000100000000
`},
	} {
		r, err := compile(text, Options{Family: knftables.InetFamily, XTables: true}, tt.host)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.String(); got != tt.want {
			t.Errorf("%v: got\n%swant\n%s", tt.host, got, tt.want)
		}
	}
}

func TestMarshalNumbersAnonymousSets(t *testing.T) {
	r, err := compileInet("ip saddr @v4 udp dport { 1, 2 } th sport { 3, 4 } accept")
	if err != nil {
		t.Fatal(err)
	}
	before := r.String()
	data, err := r.Marshal(unix.NFPROTO_INET, 7)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range attributes(data) {
		var b strings.Builder
		writeExpression(&b, e.Data)
		if _, id, ok := strings.Cut(b.String(), " 4="); ok && strings.HasPrefix(b.String(), "lookup ") {
			ids = append(ids, id)
		}
	}
	if got := strings.Join(ids, " "); got != "00000000 00000007 00000008" {
		t.Errorf("the sets have the IDs %s", got)
	}
	if r.String() != before {
		t.Error("Marshal has changed the rule")
	}
}

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
		if typ.ID() != tt.id || typ.Len() != tt.len || typ.ByteOrder() != tt.order || typ.BigEndian() != (tt.order == 2) || typ.String() != tt.text {
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
		{"mark", []string{"0x12345678"}, native(0x12345678)},
		{"ifname", []string{"cni0"}, "636e6930000000000000000000000000"},
		{"ipv4_addr . inet_service", []string{"10.0.0.1", "53"}, "0a00000100350000"},
		{"mark . inet_service", []string{"7", "109"}, native(7) + "006d0000"},
		{"ipv4_addr . ipv4_addr . inet_proto . inet_service", []string{"10.0.0.1", "10.0.0.2", "tcp", "80"}, "0a0000010a0000020600000000500000"},

		{"ipv4_addr", nil, `key [] has 0 parts, want 1 of type "ipv4_addr"`},
		{"ipv4_addr", []string{"10.0.0.1", "1"}, "has 2 parts, want 1"},
		{"ipv4_addr", []string{"fd00::1"}, `part 1 of key ["fd00::1"]: "fd00::1" is not of type ipv4_addr`},
		{"ipv4_addr", []string{"10.0.0.0/8"}, "is not of type ipv4_addr"},
		{"ipv6_addr", []string{"fe80::1%eth0"}, "is not of type ipv6_addr"},
		{"ipv4_addr . inet_service", []string{"10.0.0.1", "65536"}, `part 2 of key ["10.0.0.1" "65536"]: "65536" is above 65535`},
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
		{"ipv4_addr", "x", `interval "x": "x" is not of type ipv4_addr`},
		{"mark", "1", "has no intervals"},
		{"ifname", "a", "has no intervals"},
		{"ipv4_addr . mark", "10.0.0.1", "has no intervals"},
	} {
		if _, _, err := mustType(t, tt.typ).Interval(tt.part); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", tt.part, err, tt.want)
		}
	}
}

// FuzzCompile checks that no text panics, that compiled rules can be encoded, and that encoding does
// not change them.
func FuzzCompile(f *testing.F) {
	for _, text := range append(readGolden(f, knftables.InetFamily, "../../steer/testdata/rules.golden").rules, grammar.rules...) {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, o := range []Options{
			{Family: knftables.InetFamily, Set: setTypes}, {Family: knftables.InetFamily, Set: setTypes, XTables: true}, {Family: knftables.BridgeFamily, Set: setTypes},
		} {
			r, err := Compile(text, o)
			if err != nil {
				continue
			}
			before := r.String()
			if len(r.Exprs) == 0 || before == "" {
				t.Errorf("%q compiles to nothing", text)
			}
			if _, err := r.Marshal(unix.NFPROTO_INET, 5); err != nil {
				t.Errorf("%q: %v", text, err)
			}
			if after := r.String(); after != before {
				t.Errorf("%q: first\n%sthen\n%s", text, before, after)
			}
		}
	})
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
