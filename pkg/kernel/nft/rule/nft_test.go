package rule_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/rule"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft/ruletest"
)

// golden is a golden file with the rules of a package.
type golden struct {
	family string
	sets   []string // declarations
	rules  []string
	exprs  []string // of each rule, in the format of Dump
}

func readGolden(t *testing.T, family, file string) golden {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g := golden{family: family}
	for line := range strings.Lines(string(text)) {
		expr, indented := strings.CutPrefix(line, "\t")
		line = strings.TrimSuffix(line, "\n")
		switch {
		case indented:
			g.exprs[len(g.exprs)-1] += expr
		case strings.HasPrefix(line, "set "):
			g.sets = append(g.sets, line)
		default:
			g.rules, g.exprs = append(g.rules, line), append(g.exprs, "")
		}
	}
	return g
}

// script returns the text of a table with the sets, counters and chains that the rules use, and with the
// rules in the chain "rules".
func (g golden) script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table %s test {\n%s\n", g.family, strings.Join(g.sets, "\n"))
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
	fmt.Fprintf(&b, "chain rules {\n%s\n}\n}\n", strings.Join(g.rules, "\n"))
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

func TestAnonymousSetsAreNumbered(t *testing.T) {
	r := rule.Rule{rule.IPv4.Saddr.In("v4"), rule.L4Proto.OneOf(rule.TCP, rule.UDP), rule.FibSaddrType.OneOf(rule.Broadcast, rule.Multicast), rule.Accept}
	encoded := r.Encode(rule.Options{FirstSet: 7})
	var ids []string
	for line := range strings.Lines(ruletest.Dump(encoded)) {
		if _, id, ok := strings.Cut(line, " 4="); ok && strings.HasPrefix(line, "lookup ") {
			ids = append(ids, strings.TrimSpace(id))
		}
	}
	if got := strings.Join(ids, " "); got != "00000000 00000007 00000008" || len(encoded.Sets) != 2 {
		t.Errorf("%d sets, the lookups have the IDs %s", len(encoded.Sets), got)
	}
}

// The rules of a golden file print and encode as nft 1.0 reads and encodes them. The messages that nft sends
// are compared, because not all kernels accept all rules.
func TestRulesAreThoseOfNft(t *testing.T) {
	for family, file := range map[string]string{
		"inet":   "../../steer/testdata/rules.golden",
		"bridge": "../../bridgefilter/testdata/rules.golden",
	} {
		t.Run(family, func(t *testing.T) {
			newNamespace(t)
			g := readGolden(t, family, file)
			want := sentByNft(t, g.script())
			if len(want) != len(g.rules) || len(want) == 0 {
				t.Fatalf("nft has sent %d rules, want %d", len(want), len(g.rules))
			}
			for i, text := range g.rules {
				if diff := cmp.Diff(want[i], normalize(g.exprs[i])); diff != "" {
					t.Errorf("%s (-nft +ours):\n%s", text, diff)
				}
			}
		})
	}
}

// sentByNft returns what nft sends for each rule, in the format of Dump.
func sentByNft(t *testing.T, script string) []string {
	t.Helper()
	cmd := exec.Command("nft", "-c", "--debug=mnl", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, _ := cmd.Output() // it fails if the kernel does not accept a rule
	text := regexp.MustCompile("\x1b\\[[0-9;]*m").ReplaceAllLiteralString(string(out), "")
	var rules []string
	var r rule.Encoded
	for _, m := range strings.Split(text, "message length")[1:] {
		var kind int
		if _, err := fmt.Sscanf(m[strings.Index(m, "\n"):], "\n| %d |", &kind); err != nil {
			t.Fatal(err)
		}
		all := make(map[uint16][]byte)
		for _, a := range ruletest.Attributes(parsePrinted(t, m)) {
			all[a.Type&^unix.NLA_F_NESTED] = a.Data
		}
		switch kind &^ (unix.NFNL_SUBSYS_NFTABLES << 8) {
		case unix.NFT_MSG_NEWSET:
			if string(all[unix.NFTA_SET_NAME]) == rule.AnonymousName+"\x00" {
				r.Sets = append(r.Sets, rule.AnonymousSet{Type: rule.TypeWithID(binary.BigEndian.Uint32(all[unix.NFTA_SET_KEY_TYPE]))})
			}
		case unix.NFT_MSG_NEWSETELEM:
			r.Sets[len(r.Sets)-1].Elements = elements(all[unix.NFTA_SET_ELEM_LIST_ELEMENTS])
		case unix.NFT_MSG_NEWRULE:
			r.Exprs = all[unix.NFTA_RULE_EXPRESSIONS]
			rules = append(rules, normalize(ruletest.Dump(r)))
			r = rule.Encoded{}
		}
	}
	return rules
}

func elements(list []byte) (all []rule.Element) {
	for _, item := range ruletest.Attributes(list) {
		var e rule.Element
		for _, a := range ruletest.Attributes(item.Data) {
			switch a.Type &^ unix.NLA_F_NESTED {
			case unix.NFTA_SET_ELEM_KEY:
				e.Key = ruletest.Attributes(a.Data)[0].Data
			case unix.NFTA_SET_ELEM_FLAGS:
				e.IntervalEnd = binary.BigEndian.Uint32(a.Data) == unix.NFT_SET_ELEM_INTERVAL_END
			}
		}
		all = append(all, e)
	}
	return all
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

// normalize removes attributes that the kernel does not need from the result of Dump: the operation of Bitwise,
// IDs of sets, flags and counters that are 0, and the NUL at the end of names. It sorts those of
// Lookup and Fib.
func normalize(text string) string {
	for _, r := range []struct{ pattern, with string }{
		{`(?m)^(bitwise .*) 6=00000000`, "$1"},
		{`(?m)^(lookup .*) 4=\w+`, "$1"},
		{`(?m)^lookup (.*) 5=(\w+)(.*)$`, "lookup $1$3 5=$2"},
		{`(?m)^(queue .*) 3=0000$`, "$1"},
		{`(?m)^(dynset [^"]*"[^"]*") 2=\w+`, "$1"},
		{`counter 1=0+ 2=0+ `, "counter "},
		{`(?m)^(dynset .*) 9=00000000`, "$1"},
		{`(?m)^fib (.*) (1=\w+)$`, "fib $2 $1"},
		{`\\x00"`, `"`},
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	return text
}
