package steer

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
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

	"sigs.k8s.io/kube-network-policies/pkg/kernel/nft"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/nlattr"
)

// tablesAtOnce is the number of tables that are compared at once. With more, nft takes much longer to
// list them.
const tablesAtOnce = 8

// The nft program and pkg/kernel/nft write tables in separate network namespaces, and the results in
// the kernel are compared: as nft lists them, in both formats, and attribute by attribute. With HARD in
// the environment this is done for all configurations, which takes a minute, otherwise for a selection
// with all combinations of any two choices.
func TestKernelTablesAreThoseOfNft(t *testing.T) {
	newNode(t)
	if version, err := exec.Command("nft", "--version").Output(); err != nil || !bytes.HasPrefix(version, []byte("nftables v1.0.")) {
		t.Skipf("%s (%v) compiles some rules differently", bytes.TrimSpace(version), err)
	}
	cfgs := configurations()
	if os.Getenv("HARD") == "" {
		cfgs = pairwise(cfgs)
	}
	for some := range slices.Chunk(cfgs, tablesAtOnce) {
		theirs, err := elsewhere(func() (listing, error) { return writtenByNft(some) })
		if err != nil {
			t.Fatal(err)
		}
		ours, err := writtenByUs(t.Context(), some)
		if err != nil {
			t.Fatal(err)
		}
		if len(theirs.raw) < 1000*len(some) || strings.Count(theirs.text, "chain postrouting {") != len(some) {
			t.Fatalf("the lists of nft are too short: %d bytes, %d bytes", len(theirs.text), len(theirs.raw))
		}
		// nft programs of other versions crash on typeof data.
		if theirs.typeofs == 0 || ours.typeofs > 0 {
			t.Errorf("%d sets of nft have typeof data and %d of ours", theirs.typeofs, ours.typeofs)
		}
		for _, tt := range []struct{ name, theirs, ours string }{
			{"nft list ruleset", theirs.text, ours.text}, {"nft -j list ruleset", theirs.json, ours.json}, {"attributes", theirs.raw, ours.raw},
		} {
			if diff := firstDifference(tt.theirs, tt.ours); diff != "" {
				t.Errorf("%s (-nft +ours):\n%s", tt.name, diff)
			}
		}
	}
}

// writtenByNft lists the tables that the nft program has written.
func writtenByNft(cfgs []Config) (listing, error) {
	var script strings.Builder
	for i, cfg := range cfgs {
		tx := knftables.NewFake(knftables.InetFamily, testTable(i)).NewTransaction()
		configuredTable(cfg).Replay(tx)
		script.WriteString(tx.String())
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return listing{}, fmt.Errorf("%w: %.1000s", err, out)
	}
	return list(len(cfgs))
}

// writtenByUs lists the tables that pkg/kernel/nft has written, and removes them. They are in the network
// namespace of the process, because a Table opens its socket there.
func writtenByUs(ctx context.Context, cfgs []Config) (listing, error) {
	for i, cfg := range cfgs {
		table, err := nft.New(knftables.InetFamily, testTable(i), nft.Options{Sets: tableSets(cfg)})
		if err != nil {
			return listing{}, err
		}
		defer table.Close()
		if err := table.Run(ctx, configuredTable(cfg)); err != nil {
			return listing{}, err
		}
	}
	ours, err := list(len(cfgs))
	return ours, errors.Join(err, shell("nft flush ruleset"))
}

func testTable(i int) string { return fmt.Sprint("table-", i) }

// configuredTable returns the transaction that creates the table of cfg. Instead of queueing, the rules
// accept, because not all kernels have the queue statement.
func configuredTable(cfg Config) *nft.Transaction {
	tx := new(nft.Transaction)
	tx.Add(&knftables.Table{})
	for _, name := range tableCounters {
		tx.Add(&knftables.Counter{Name: name})
	}
	for _, set := range tableSets(cfg) {
		tx.Add(set)
	}
	all := chains(cfg)
	for _, c := range all {
		tx.Add(c.object())
	}
	for _, c := range all {
		for _, r := range c.rules {
			tx.Add(&knftables.Rule{Chain: c.name, Rule: regexp.MustCompile(`queue .*`).ReplaceAllLiteralString(r, "accept")})
		}
	}
	planElements(tx, cfg.specs(), contents{}, documentSets.contents())
	return tx
}

// pairwise returns a selection of configurations that contains, for any two choices, one with both, one
// with neither and one with each of them.
func pairwise(all []Config) []Config {
	choices := bits.Len(uint(len(all) - 1))
	type pair struct{ first, second, values int }
	pairs := func(n int) (pairs []pair) {
		// The index of a configuration has a bit for each choice.
		for i := range choices {
			for j := range i {
				pairs = append(pairs, pair{i, j, n>>i&1<<1 | n>>j&1})
			}
		}
		return pairs
	}
	met := make(map[pair]bool)
	unmet := func(n int) (count int) {
		for _, p := range pairs(n) {
			if !met[p] {
				count++
			}
		}
		return count
	}
	var some []Config
	for {
		best := 0
		for n := range all {
			if unmet(n) > unmet(best) {
				best = n
			}
		}
		if unmet(best) == 0 {
			return some
		}
		some = append(some, all[best])
		for _, p := range pairs(best) {
			met[p] = true
		}
	}
}

// elsewhere runs f in a new network namespace.
func elsewhere[T any](f func() (T, error)) (value T, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			value, err = f()
		}
	}()
	<-done
	return value, err
}

// listing contains all tables in the kernel.
type listing struct {
	text, json, raw string
	typeofs         int // number of sets with typeof data
}

var handles = regexp.MustCompile(`"handle": \d+(, )?`)

func list(tables int) (listing, error) {
	text, err := exec.Command("nft", "list", "ruleset").Output()
	json, errJSON := exec.Command("nft", "-j", "list", "ruleset").Output()
	if err := errors.Join(err, errJSON); err != nil {
		return listing{}, err
	}
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return listing{}, err
	}
	defer conn.Close()
	var raw strings.Builder
	typeofs := 0
	for i := range tables {
		n, err := dumpTable(conn, testTable(i), &raw)
		if err != nil {
			return listing{}, err
		}
		typeofs += n
	}
	objects := strings.ReplaceAll(handles.ReplaceAllLiteralString(string(json), ""), "}, {", "},\n{")
	return listing{string(text), objects, raw.String(), typeofs}, nil
}

// dumpTable writes all attributes of the chains, rules, sets, elements and counters of a table, except
// handles and typeof data. It returns the number of sets with typeof data.
func dumpTable(conn *netlink.Conn, table string, to *strings.Builder) (typeofs int, err error) {
	dump := func(what netlink.HeaderType, without []uint16, of ...argument) ([][]byte, error) {
		answers, err := get(conn, what, netlink.Dump, append(of, stringArgument(1, table))...)
		for _, a := range answers {
			fmt.Fprint(to, what)
			for kind, value := range nlattr.All(a) {
				if !slices.Contains(without, kind) {
					fmt.Fprintf(to, " %d=%x", kind, value)
				}
			}
			fmt.Fprintln(to)
		}
		return answers, err
	}
	_, errChains := dump(unix.NFT_MSG_GETCHAIN, []uint16{unix.NFTA_CHAIN_HANDLE})
	_, errRules := dump(unix.NFT_MSG_GETRULE, []uint16{unix.NFTA_RULE_HANDLE, unix.NFTA_RULE_POSITION})
	_, errObjects := dump(unix.NFT_MSG_GETOBJ, []uint16{nftaObjHandle})
	sets, errSets := dump(unix.NFT_MSG_GETSET, []uint16{nftaSetHandle, unix.NFTA_SET_USERDATA})
	if err := errors.Join(errChains, errRules, errObjects, errSets); err != nil {
		return 0, err
	}
	for _, set := range sets {
		name := text(attribute(set, unix.NFTA_SET_NAME))
		data, typeof := userData(attribute(set, unix.NFTA_SET_USERDATA), number(attribute(set, unix.NFTA_SET_KEY_LEN)) > 1)
		if typeof {
			typeofs++
		}
		lists, err := get(conn, unix.NFT_MSG_GETSETELEM, netlink.Dump, stringArgument(1, table), stringArgument(unix.NFTA_SET_ELEM_LIST_SET, name))
		if err != nil {
			return 0, err
		}
		var elements []string
		for _, list := range lists {
			for _, e := range nlattr.All(attribute(list, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				elements = append(elements, hex.EncodeToString(e))
			}
		}
		slices.Sort(elements) // the order in a hash table is random
		fmt.Fprintln(to, name, data, elements)
	}
	return typeofs, nil
}

// userData splits the user data of a set into its members, each with a byte for the type, a byte for the
// length, and the value. It omits typeof data, and reports whether there is any. It also omits the byte
// order unless ordered is set: single bytes have none, and for an anonymous set of them nft declares that
// of the selector.
func userData(b []byte, ordered bool) (members []string, typeof bool) {
	const keyByteOrder, keyTypeof = 0, 3 // NFTNL_UDATA_SET_KEYBYTEORDER, NFTNL_UDATA_SET_KEY_TYPEOF
	for len(b) >= 2 && len(b) >= 2+int(b[1]) {
		member := b[:2+int(b[1])]
		b = b[len(member):]
		switch {
		case member[0] == keyTypeof:
			typeof = true
		case ordered || member[0] != keyByteOrder:
			members = append(members, hex.EncodeToString(member))
		}
	}
	return members, typeof
}

// firstDifference returns the first lines that differ.
func firstDifference(a, b string) string {
	linesA, linesB := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(linesA), len(linesB)) {
		if i >= len(linesA) || i >= len(linesB) || linesA[i] != linesB[i] {
			return cmp.Diff(linesA[min(i, len(linesA)):min(i+5, len(linesA))], linesB[min(i, len(linesB)):min(i+5, len(linesB))])
		}
	}
	return ""
}
