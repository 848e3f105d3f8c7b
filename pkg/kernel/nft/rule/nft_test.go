package rule

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

// The tests in this file compare this package with nft 1.0 in a new network namespace.

// golden is the golden file with the rules of a package.
type golden struct {
	family knftables.Family
	sets   []string // declarations
	rules  []string
}

func readGolden(t testing.TB, family knftables.Family, file string) golden {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g := golden{family: family}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "\t"): // the compiled form
		case strings.HasPrefix(line, "set "):
			g.sets = append(g.sets, line)
		default:
			g.rules = append(g.rules, line)
		}
	}
	return g
}

// typeOf returns the key type of a declared set.
func (g golden) typeOf(name string) (Type, bool) {
	for _, set := range g.sets {
		if fields := regexp.MustCompile(`^set (\S+) \{ type ([^;]+);`).FindStringSubmatch(set); fields[1] == name {
			typ, err := ParseType(fields[2])
			return typ, err == nil
		}
	}
	return Type{}, false
}

// table returns the text of a table with the sets, counters and chains that the rules use, and with
// these rules in the chain "rules".
func (g golden) table(name string, rules []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s %s {\n%s\n", g.family, name, strings.Join(g.sets, "\n"))
	declared := make(map[string]bool)
	for _, r := range g.rules {
		for _, use := range regexp.MustCompile(`(counter name|jump|goto) ([a-z-]+)`).FindAllStringSubmatch(r, -1) {
			kind := map[string]string{"counter name": "counter", "jump": "chain", "goto": "chain"}[use[1]]
			if text := kind + " " + use[2] + " {\n}\n"; !declared[text] {
				declared[text] = true
				b.WriteString(text)
			}
		}
	}
	fmt.Fprintf(&b, "chain rules {\n%s\n}\n}\n", strings.Join(rules, "\n"))
	return b.String()
}

// newNamespace moves the rest of the test to a new network namespace. It skips the test if that is
// not permitted, or if nft is missing or unsuitable. NETNS_REQUIRED forbids the skip except for an
// unsuitable nft.
func newNamespace(t *testing.T) {
	t.Helper()
	version, err := exec.Command("nft", "--version").Output()
	if err == nil && !bytes.HasPrefix(version, []byte("nftables v1.0.")) {
		t.Skipf("%s compiles some rules differently", bytes.TrimSpace(version))
	}
	if err == nil {
		runtime.LockOSThread() // never unlocked: the thread ends with the test, and the namespace with it
		err = unix.Unshare(unix.CLONE_NEWNET)
	}
	missing := errors.Is(err, exec.ErrNotFound) || errors.Is(err, unix.EPERM)
	switch {
	case missing && os.Getenv("NETNS_REQUIRED") == "":
		t.Skip(err)
	case err != nil:
		t.Fatal(err)
	}
}

// nft runs a script and returns its output.
func nft(t *testing.T, script string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs strings.Builder // separate, because nft writes errors into the middle of an output line
	cmd := exec.Command("nft", append(args, "-f", "-")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// attribute returns an attribute with a string or a number.
func attribute[V string | uint32 | []byte](kind uint16, value V) netlink.Attribute {
	switch v := any(value).(type) {
	case string:
		return netlink.Attribute{Type: kind, Data: append([]byte(v), 0)}
	case uint32:
		return netlink.Attribute{Type: kind, Data: binary.BigEndian.AppendUint32(nil, v)}
	default:
		return netlink.Attribute{Type: kind, Data: v.([]byte)}
	}
}

func nest(kind uint16, all ...netlink.Attribute) netlink.Attribute {
	data, err := netlink.MarshalAttributes(all)
	if err != nil {
		panic(err)
	}
	return netlink.Attribute{Type: kind | unix.NLA_F_NESTED, Data: data}
}

// table is a table of the kernel.
type table struct {
	family byte // an NFPROTO
	name   string
}

// message returns an nftables message about a table. NFTA_*_TABLE is 1 in all messages.
func message(kind uint16, flags netlink.HeaderFlags, table table, all ...netlink.Attribute) netlink.Message {
	data := nest(0, append([]netlink.Attribute{attribute(1, table.name)}, all...)...).Data
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags},
		Data:   append([]byte{table.family, unix.NFNETLINK_V0, 0, 0}, data...),
	}
}

// addSet returns the messages that add an anonymous set.
func addSet(table table, id uint32, s AnonymousSet) []netlink.Message {
	flags := uint32(unix.NFT_SET_ANONYMOUS | unix.NFT_SET_CONSTANT)
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	var elements []netlink.Attribute
	for _, e := range s.Elements {
		attributes := []netlink.Attribute{nest(unix.NFTA_SET_ELEM_KEY, attribute(unix.NFTA_DATA_VALUE, e.Key))}
		if e.IntervalEnd {
			attributes = append(attributes, attribute(unix.NFTA_SET_ELEM_FLAGS, uint32(unix.NFT_SET_ELEM_INTERVAL_END)))
		}
		elements = append(elements, nest(unix.NFTA_LIST_ELEM, attributes...))
	}
	return []netlink.Message{
		message(unix.NFT_MSG_NEWSET, netlink.Create|netlink.Acknowledge, table,
			attribute(unix.NFTA_SET_NAME, AnonymousName), attribute(unix.NFTA_SET_ID, id), attribute(unix.NFTA_SET_FLAGS, flags),
			attribute(unix.NFTA_SET_KEY_TYPE, s.Type.ID()), attribute(unix.NFTA_SET_KEY_LEN, s.Type.Len()),
			nest(unix.NFTA_SET_DESC, attribute(unix.NFTA_SET_DESC_SIZE, uint32(len(s.Elements))))),
		message(unix.NFT_MSG_NEWSETELEM, netlink.Create|netlink.Acknowledge, table,
			attribute(unix.NFTA_SET_ELEM_LIST_SET, AnonymousName), attribute(unix.NFTA_SET_ELEM_LIST_SET_ID, id),
			nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, elements...)),
	}
}

// write adds rules to the chain "rules" of a table.
func write(t *testing.T, conn *netlink.Conn, table table, texts []string, o Options) {
	t.Helper()
	frame := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}}
	}
	batch := []netlink.Message{frame(unix.NFNL_MSG_BATCH_BEGIN)}
	about := []string{"the batch"}
	id := uint32(1)
	for _, text := range texts {
		r, err := Compile(text, o)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		exprs, err := r.Marshal(table.family, id)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for i, s := range r.Sets {
			batch = append(batch, addSet(table, id+uint32(i), s)...)
		}
		id += uint32(len(r.Sets))
		batch = append(batch, message(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append|netlink.Acknowledge, table,
			attribute(unix.NFTA_RULE_CHAIN, "rules"), attribute(unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, exprs)))
		for len(about) < len(batch) {
			about = append(about, text)
		}
	}
	if _, err := conn.SendMessages(append(batch, frame(unix.NFNL_MSG_BATCH_END))); err != nil {
		t.Fatal(err)
	}
	for _, text := range about[1:] {
		if _, err := conn.Receive(); err != nil {
			t.Fatalf("the kernel refuses %s: %v", text, err)
		}
	}
}

// dump returns the answers to a request without handles.
func dump(t *testing.T, conn *netlink.Conn, request netlink.Message) [][]netlink.Attribute {
	t.Helper()
	answers, err := conn.Execute(request)
	if err != nil {
		t.Fatal(err)
	}
	var all [][]netlink.Attribute
	for _, m := range answers {
		list, err := netlink.UnmarshalAttributes(m.Data[4:])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list)
	}
	return all
}

// withTypes returns the attributes with these types.
func withTypes(all []netlink.Attribute, kinds ...uint16) []netlink.Attribute {
	return slices.DeleteFunc(all, func(a netlink.Attribute) bool {
		return !slices.Contains(kinds, a.Type&^unix.NLA_F_NESTED)
	})
}

// state returns the rules and the anonymous sets of a table in the kernel.
func state(t *testing.T, conn *netlink.Conn, table table) (rules, sets []string) {
	t.Helper()
	for _, r := range dump(t, conn, message(unix.NFT_MSG_GETRULE, netlink.Dump, table, attribute(unix.NFTA_RULE_CHAIN, "rules"))) {
		rules = append(rules, fmt.Sprintf("%x", withTypes(r, unix.NFTA_RULE_EXPRESSIONS)))
	}
	for _, s := range dump(t, conn, message(unix.NFT_MSG_GETSET, netlink.Dump, table)) {
		name := withTypes(slices.Clone(s), unix.NFTA_SET_NAME)[0].Data
		if !bytes.HasPrefix(name, []byte("__set")) {
			continue
		}
		var elements []string
		for _, list := range dump(t, conn, message(unix.NFT_MSG_GETSETELEM, netlink.Dump, table, attribute(unix.NFTA_SET_ELEM_LIST_SET, name))) {
			for _, e := range attributes(withTypes(list, unix.NFTA_SET_ELEM_LIST_ELEMENTS)[0].Data) {
				elements = append(elements, hex.EncodeToString(e.Data))
			}
		}
		slices.Sort(elements) // the order in a hash table is random
		sets = append(sets, fmt.Sprintf("%s %x %s", name,
			withTypes(s, unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DESC), elements))
	}
	return rules, sets
}

// compareWithKernel writes rules with nft and with this package, and compares the results in the
// kernel.
func compareWithKernel(t *testing.T, g golden, rules []string) {
	t.Helper()
	newNamespace(t)
	script := g.table("theirs", rules) + g.table("ours", nil)
	if _, out, err := nft(t, script); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadBuffer(8 << 20); err != nil { // each message of a batch is acknowledged
		t.Fatal(err)
	}
	family := map[knftables.Family]byte{knftables.InetFamily: unix.NFPROTO_INET, knftables.BridgeFamily: unix.NFPROTO_BRIDGE}[g.family]
	theirs, ours := table{family, "theirs"}, table{family, "ours"}
	write(t, conn, ours, rules, Options{Family: g.family, Set: g.typeOf})
	wantRules, wantSets := state(t, conn, theirs)
	gotRules, gotSets := state(t, conn, ours)
	if len(wantRules) != len(rules) || len(gotRules) != len(rules) {
		t.Fatalf("the kernel has %d rules of nft and %d of ours, want %d", len(wantRules), len(gotRules), len(rules))
	}
	for i, text := range rules {
		if wantRules[i] != gotRules[i] {
			t.Errorf("%s\nnft:  %s\nours: %s", text, wantRules[i], gotRules[i])
		}
	}
	if diff := cmp.Diff(wantSets, gotSets); diff != "" {
		t.Errorf("anonymous sets (-nft +ours):\n%s", diff)
	}
}

func isQueue(rule string) bool { return strings.Contains(rule, "queue ") }

func TestRulesAreThoseOfNft(t *testing.T) {
	g := readGolden(t, knftables.InetFamily, "../../steer/testdata/rules.golden")
	// Not all kernels have the queue statement.
	compareWithKernel(t, g, slices.DeleteFunc(slices.Clone(g.rules), isQueue))
}

func TestRulesOfBridgesAreThoseOfNft(t *testing.T) {
	g := readGolden(t, knftables.BridgeFamily, "../../bridgefilter/testdata/rules.golden")
	compareWithKernel(t, g, g.rules)
}

// grammar contains forms of rules that this package compiles and that no rule of ours uses.
var grammar = golden{
	family: knftables.InetFamily,
	sets: []string{
		"set v4 { type ipv4_addr; }", "set marks { type mark; }", "set names { type ifname; }",
		"set pairs { type ifname . ipv4_addr; }", "set many { type ipv6_addr . ipv6_addr . ipv6_addr; }", "set threes { type inet_service . inet_service . ipv4_addr; }", "set dyn { type ipv4_addr; flags dynamic, timeout; }",
	},
	rules: []string{
		"meta mark 5 accept", "meta mark != 0x10 accept", "meta mark @marks accept", "meta mark { 1, 2 } accept", "meta mark & 0xff == 0x12 accept",
		"ct mark != @marks drop", "meta mark & 0xff != 0 return",
		"meta nfproto ipv4 ip saddr 10.0.0.1 accept", "meta nfproto ipv6 ip6 daddr fd00::1 accept", "meta nfproto != ipv4 accept",
		"meta nfproto == ipv4 accept",
		"meta l4proto udp udp dport 53 accept", "udp dport 53 udp dport != 54 accept", "udp dport 100-200 accept", "udp dport { 53, 100-200 } accept",
		"udp dport { 0-10, 65530-65534 } accept",
		"meta l4proto 17 accept", "meta l4proto != tcp accept", "meta l4proto tcp th dport 80 accept", "th dport != { 80, 443 } accept",
		"iif 1 accept", "oif != 1 accept", "iifname eth0 accept", "iifname != eth0 accept", "iifname @names accept",
		"iifname . ip saddr @pairs accept", "iifname . ip saddr != @pairs accept", "ip6 saddr . ip6 daddr . ip6 saddr @many accept",
		"ct state == established,related accept", "ct state != established,related accept", "ct state invalid,untracked drop", "ct state new drop",
		"ct status dnat,snat accept", "ct status != dnat accept", "ct direction reply accept", "ct direction != original accept",
		"ip saddr 10.0.0.0/9 accept", "ip saddr != 10.0.0.0/9 accept", "ip daddr 10.0.0.1-10.0.0.9 accept", "ip6 saddr fd00::1-fd00::ff accept",
		"ip saddr { 10.0.0.0/8, 192.168.0.1, 172.16.0.0/12 } accept", "ip daddr != { 0.0.0.0/8, 224.0.0.0/4 } accept", "ip6 daddr { fd00::/8, f000::/8 } accept",
		"ip protocol tcp accept", "ip protocol tcp th dport 80 accept", "ip protocol udp ip saddr @v4 accept", "ip6 nexthdr udp accept", "ip6 nexthdr != tcp ip6 hoplimit 3-5 accept", "ip6 hoplimit { 1, 2 } accept",
		"ip6 hoplimit != 255 drop", "icmpv6 type 133 accept", "icmpv6 type != 133 drop", "ip saddr @v4 udp dport 53 ip daddr @v4 accept",
		"fib saddr . iif oif exists accept", "fib saddr type != { local, multicast } drop", "fib daddr type unicast accept",
		"meta mark set meta mark & 0xff", "ct mark set ct mark & 0xfffffff0 accept",
		"add @dyn { ip saddr timeout 5s counter } accept", "update @dyn { ip daddr counter } drop", "add @dyn { ip saddr limit rate 5/second burst 1 packets }",
		"udp dport 53 ip protocol udp accept", "th sport . th dport . ip saddr @threes accept",
	},
}

func TestOtherRulesAreThoseOfNft(t *testing.T) {
	compareWithKernel(t, grammar, grammar.rules)
}

// The messages are compared, too, because some kernels do not accept all rules.
func TestSentExpressionsAreThoseOfNft(t *testing.T) {
	newNamespace(t)
	g := readGolden(t, knftables.InetFamily, "../../steer/testdata/rules.golden")
	g.rules = slices.DeleteFunc(g.rules, func(r string) bool { return !isQueue(r) })
	want := sentByNft(t, g.table("theirs", g.rules))
	if len(want) != len(g.rules) || len(want) == 0 {
		t.Fatalf("nft has sent %d rules, want %d", len(want), len(g.rules))
	}
	for i, text := range g.rules {
		r, err := Compile(text, Options{Family: g.family, Set: g.typeOf})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want[i], normalize(r.String())); diff != "" {
			t.Errorf("%s (-nft +ours):\n%s", text, diff)
		}
	}
}

// sentByNft returns the expressions of each rule that nft sends, in the format of Rule.String, whether or
// not the kernel accepts them.
func sentByNft(t *testing.T, script string) []string {
	t.Helper()
	out, _, _ := nft(t, script, "-c", "--debug=mnl")
	out = regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllLiteralString(out, "")
	var rules []string
	for _, m := range strings.Split(out, "message length")[1:] {
		if !strings.Contains(m, fmt.Sprintf("| %05d |", unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE)) {
			continue
		}
		all := attributes(parsePrinted(t, m))
		exprs := attributes(withTypes(all, unix.NFTA_RULE_EXPRESSIONS)[0].Data)
		var b strings.Builder
		for _, e := range exprs {
			writeExpression(&b, e.Data)
			b.WriteByte('\n')
		}
		rules = append(rules, normalize(b.String()))
	}
	return rules
}

// parsePrinted decodes the attributes in a message that nft has printed: it prints their headers, and their
// data in lines of four bytes.
func parsePrinted(t *testing.T, message string) []byte {
	t.Helper()
	var data []byte
	for line := range strings.Lines(message) {
		var length, kind uint16
		var flags string
		var b [4]byte
		if n, _ := fmt.Sscanf(line, "|%d|%2s|%d|", &length, &flags, &kind); n == 3 {
			if flags[0] == 'N' {
				kind |= unix.NLA_F_NESTED
			}
			data = binary.NativeEndian.AppendUint16(data, length)
			data = binary.NativeEndian.AppendUint16(data, kind)
		} else if n, _ := fmt.Sscanf(line, "| %x %x %x %x |", &b[0], &b[1], &b[2], &b[3]); n == 4 && strings.Contains(line, " data ") {
			data = append(data, b[:]...)
		}
	}
	return data
}

// normalize removes attributes that the kernel does not need from the result of Rule.String: the
// operation of Bitwise, the ID of a named set, empty flags, and the NUL at the end of names.
func normalize(rule string) string {
	rule = regexp.MustCompile(`(?m)^(bitwise .*) 6=00000000`).ReplaceAllString(rule, "$1")
	rule = regexp.MustCompile(`(?m)^(lookup .*) 4=\w+$`).ReplaceAllString(rule, "$1")
	rule = regexp.MustCompile(`(?m)^(queue .*) 3=0000$`).ReplaceAllString(rule, "$1")
	return strings.ReplaceAll(rule, `\x00"`, `"`)
}
