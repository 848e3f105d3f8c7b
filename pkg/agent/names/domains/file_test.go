package domains

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/base/sealedfile"
)

// agent is an agent of a node with a File and a clock.
type agent struct {
	*fixture
	*File
	alone bool
}

// nodeOf is a node with its clock.
type nodeOf struct {
	path string
	up   time.Duration
	cfg  func(*FileConfig) // changes the configuration of further agents
}

func newNode(t *testing.T) *nodeOf {
	return &nodeOf{path: filepath.Join(t.TempDir(), "names"), up: time.Hour, cfg: func(*FileConfig) {}}
}

// start returns a new agent on the node, which has not loaded the file yet.
func (n *nodeOf) start(t testing.TB) *agent {
	a := &agent{fixture: newFixture(t), alone: true}
	cfg := FileConfig{
		Path: n.path, Node: "node-1", Boot: "boot-1", Resolvers: []netip.AddrPort{netip.MustParseAddrPort(dns)},
		Uptime: func() time.Duration { return n.up }, Alone: func() bool { return a.alone }, Registerer: prometheus.NewRegistry(),
	}
	n.cfg(&cfg)
	a.File = NewFile(cfg, a.Table)
	return a
}

// wait lets time pass for the node and for an agent.
func (n *nodeOf) wait(d time.Duration, a *agent) {
	n.up += d
	a.now = a.now.Add(d)
}

// logged returns a context with a logger, and what it has logged so far.
func logged(t *testing.T) (context.Context, func() string) {
	var b strings.Builder
	logger := funcr.New(func(_, args string) { b.WriteString(args + "\n") }, funcr.Options{})
	return klog.NewContext(t.Context(), logger), b.String
}

func (a *agent) readCount(r sealedfile.Reason) float64 {
	return testutil.ToFloat64(a.file.Metrics.Reads.WithLabelValues(string(r)))
}

// TestNamesSurviveARestart: another agent knows what the first one has learned, for as long as the
// first one would have known it. Nothing is learned twice.
func TestNamesSurviveARestart(t *testing.T) {
	const odd = "\xff\x00.a.test" // DNS names may have any bytes
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	first := n.start(t)
	first.learns("a.test", at("a.test", "192.0.2.1", 300), at("a.test", "192.0.2.2", 20))
	first.learns("b.test", at("b.test", "192.0.2.1", 100))
	first.known(odd, "192.0.2.3", time.Hour)
	n.wait(10*time.Second, first)
	first.save(ctx)
	n.wait(time.Minute+30*time.Second, first) // nothing is learned meanwhile

	second := n.start(t)
	second.Load(ctx)

	second.expect("192.0.2.1", "a.test b.test")
	second.expect("192.0.2.2", "") // it has expired while no agent ran
	second.expect("192.0.2.3", odd)
	if got := names(second.Names(ip(otherAt), ip("192.0.2.1"))); got != "" {
		t.Errorf("another pod knows %q", got)
	}
	n.wait(time.Minute, second) // 160 seconds after the answer with a TTL of 100
	second.expect("192.0.2.1", "a.test")
	n.wait(200*time.Second, second)
	second.expect("192.0.2.1", "")
	second.answered(learned, 0)
	if got := second.readCount(sealedfile.Used); got != 1 {
		t.Errorf("%v reads are used, want 1", got)
	}
}

// known makes the pod know a name of an address.
func (f *fixture) known(name, addr string, left time.Duration) {
	(*f.pods.Load())[ip(podAt)].known.learn(name, ip(addr), f.now, f.now.Add(left))
}

// TestOwnersOfSavedNames: names are of the pod that has learned them, whenever the agent gets to
// know it, and of no other one at its address.
func TestOwnersOfSavedNames(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	first := n.start(t)
	first.learns("a.test", at("a.test", "192.0.2.1", 300))
	first.save(ctx)
	for _, tc := range []struct {
		title string
		keep  [][]string
		want  string
	}{
		{"the pod", [][]string{{podAt + " pod"}}, "a.test"},
		{"the pod, known late", [][]string{nil, {otherAt + " other"}, {podAt + " pod", otherAt + " other"}}, "a.test"},
		{"a new pod", [][]string{{podAt + " new"}}, ""},
		{"a new pod, and the pod elsewhere", [][]string{{podAt + " new", otherAt + " pod"}}, ""},
		{"the pod, which was not selected meanwhile", [][]string{{podAt + " pod"}, nil, {podAt + " pod"}}, ""},
	} {
		t.Run(tc.title, func(t *testing.T) {
			second := n.start(t)
			second.keep()
			second.Load(ctx)
			for _, owners := range tc.keep {
				second.keep(owners...)
			}
			second.expect("192.0.2.1", tc.want)
		})
	}

	t.Run("a restart before the pod is known", func(t *testing.T) {
		second := n.start(t)
		second.keep()
		second.Load(ctx)
		second.save(ctx)
		third := n.start(t)
		third.Load(ctx)
		third.expect("192.0.2.1", "a.test")
	})
}

// TestSavedNamesThatAreNotUsed: the log says why, and the agent goes on without.
func TestSavedNamesThatAreNotUsed(t *testing.T) {
	content := func(text string) []byte {
		b, err := fileFormat.Seal(func(w io.Writer) error {
			_, err := io.WriteString(w, text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	of := func(addrs string) []byte {
		return content(`{"node":"node-1","boot":"boot-1","resolvers":["` + dns + `"],"saved":1}{"p":"pod","n":[{"n":"YS50ZXN0","a":` + addrs + `}]}`)
	}
	for _, tc := range []struct {
		title  string
		file   []byte // nil: as an agent writes it
		change func(*nodeOf)
		reason sealedfile.Reason
		want   string
	}{
		{"as written", nil, func(*nodeOf) {}, sealedfile.Used, "Saved names are read"},
		{"by hand", of(`{"192.0.2.1":1000000000000}`), func(n *nodeOf) { n.up = 1 }, sealedfile.Used, "Saved names are read"},
		{"none", nil, func(n *nodeOf) { n.path += ".none" }, sealedfile.Missing, "No names are saved"},
		{"another version", []byte("kube-network-policies names 2 \n"), func(*nodeOf) {}, sealedfile.Version, "another version or another program has written it"},
		{"damaged", append(of("{}"), 0), func(*nodeOf) {}, sealedfile.Corrupt, "the checksum is wrong"},
		{"half a pod", content(`{"node":"node-1"}{"p":`), func(*nodeOf) {}, sealedfile.Corrupt, "unexpected EOF"},
		{"of no pod", content(`{"node":"node-1"}{"n":[]}`), func(*nodeOf) {}, sealedfile.Corrupt, "no name of a pod"},
		{"no name", content(`{}{"p":"pod","n":[{"a":{}}]}`), func(*nodeOf) {}, sealedfile.Corrupt, "is no name"},
		{"capital letters", content(`{}{"p":"pod","n":[{"n":"QQ=="}]}`), func(*nodeOf) {}, sealedfile.Corrupt, "is no name"},
		{"a long name", content(`{}{"p":"pod","n":[{"n":"` + strings.Repeat("YWFh", 86) + `"}]}`), func(*nodeOf) {}, sealedfile.Corrupt, "is no name"},
		{"no address", of(`{"192.0.2.256":1}`), func(*nodeOf) {}, sealedfile.Corrupt, "192.0.2.256"},
		{"an empty address", of(`{"":1}`), func(*nodeOf) {}, sealedfile.Corrupt, "is no address"},
		{"a mapped address", of(`{"::ffff:192.0.2.1":1}`), func(*nodeOf) {}, sealedfile.Corrupt, "is no address"},
		{"an address with a zone", of(`{"fe80::1%eth0":1}`), func(*nodeOf) {}, sealedfile.Corrupt, "is no address"},
		{"no lifetime", of(`{"192.0.2.1":0}`), func(*nodeOf) {}, sealedfile.Corrupt, "is no lifetime"},
		{"too long", of(fmt.Sprintf(`{"192.0.2.1":%d}`, MaxTTL+Grace+1)), func(*nodeOf) {}, sealedfile.Corrupt, "is no lifetime"},
		{"another node", nil, func(n *nodeOf) { n.cfg = func(c *FileConfig) { c.Node = "node-2" } }, node, `of node \"node-1\", not \"node-2\"`},
		{"before the boot", nil, func(n *nodeOf) { n.cfg = func(c *FileConfig) { c.Boot = "boot-2" } }, boot, "No names are saved"},
		{"other resolvers", nil, func(n *nodeOf) { n.cfg = func(c *FileConfig) { c.Resolvers = nil } }, resolvers, "was learned from the resolvers [10.96.0.10:53], now they are []"},
		{"a clock that went backwards", nil, func(n *nodeOf) { n.up-- }, clock, "was written 1h0m0s after the node booted, which is only 59m59.999999999s ago"},
	} {
		t.Run(tc.title, func(t *testing.T) {
			ctx, log := logged(t)
			n := newNode(t)
			first := n.start(t)
			first.learns("a.test", at("a.test", "192.0.2.1", 300))
			first.save(ctx)
			if tc.file != nil {
				if err := os.WriteFile(n.path, tc.file, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			tc.change(n)
			second := n.start(t)
			second.Load(ctx)

			want := ""
			if tc.reason == sealedfile.Used {
				want = "a.test"
			}
			second.expect("192.0.2.1", want)
			if second.readCount(tc.reason) != 1 {
				t.Errorf("the reason %s is not counted", tc.reason)
			}
			if !strings.Contains(log(), tc.want) {
				t.Errorf("the log does not say %q:\n%s", tc.want, log())
			}
			second.learns("b.test", at("b.test", "192.0.2.9", 300))
			second.expect("192.0.2.9", "b.test")
		})
	}
}

// TestSavedNamesAreBounded: pods that know most give way, and keep what they have used last.
func TestSavedNamesAreBounded(t *testing.T) {
	_, ctx := ktesting.NewTestContext(t)
	n := newNode(t)
	first := n.start(t)
	const pods = maxSaved/MaxAddresses + 4
	var owners []string
	for i := range pods {
		owners = append(owners, fmt.Sprintf("10.0.1.%d p%d", i, i))
	}
	first.keep(owners...)
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}) }
	for i := range pods {
		k := (*first.pods.Load())[netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})].known
		for j := range MaxAddresses {
			k.learn(strings.Repeat("\xff", 255), addr(j), first.now, first.now.Add(time.Hour))
		}
	}
	first.save(ctx)
	if info, err := os.Stat(n.path); err != nil || info.Size() > fileFormat.MaxFile {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}

	second := n.start(t)
	second.keep(owners...)
	second.Load(ctx)
	if got, want := second.addresses(), maxSaved/pods*pods; got != want {
		t.Errorf("%d addresses are restored, want %d", got, want)
	}
	if second.Names(ip("10.0.1.0"), addr(MaxAddresses-1)) == nil || second.Names(ip("10.0.1.0"), addr(0)) != nil {
		t.Error("it is not the latest that are restored")
	}

	many := make(map[netip.Addr]time.Duration)
	for i := range maxSaved + 1 {
		many[addr(i)] = time.Hour
	}
	var b bytes.Buffer
	if err := encode(&b, &header{}, []savedPod{{"pod", []savedName{{[]byte("a"), many}}}}); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := decode(&b); err == nil {
		t.Error("a file with more is read")
	}
}

// TestSavesAreRare: however many answers there are, the file is written once in saveInterval, and
// only if something is new. It is written once more at the end.
func TestSavesAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		n := newNode(t)
		a := n.start(t)
		a.Table.now = time.Now // of the bubble
		ended := make(chan error)
		go func() { ended <- a.Run(ctx) }()
		writes := func() int { return int(testutil.ToFloat64(a.file.Metrics.Writes.WithLabelValues("success"))) }

		time.Sleep(time.Minute)
		if writes() != 0 {
			t.Error("the file is written although nothing has been learned")
		}
		a.learns("a.test", at("a.test", "192.0.2.1", 300))
		a.learns("b.test", at("b.test", "192.0.2.1", 300))
		time.Sleep(settleTime)
		synctest.Wait()
		if writes() != 1 {
			t.Errorf("%d writes after the first answers, want 1", writes())
		}
		for i := range 100 {
			a.learns("a.test", at("a.test", fmt.Sprintf("192.0.2.%d", i), 300))
			time.Sleep(saveInterval / 10)
		}
		if got := writes(); got < 9 || got > 12 {
			t.Errorf("%d writes during 50 seconds of answers", got)
		}
		a.learns("a.test", at("a.test", "192.0.2.1", 300))
		time.Sleep(2 * saveInterval)
		before := writes()
		a.learns("a.test", at("a.test", "192.0.2.1", 300+uint32(Grace.Seconds()/2)))
		time.Sleep(2 * saveInterval)
		if got := writes() - before; got > 1 {
			t.Errorf("%d writes because of a longer lifetime", got)
		}
		before = writes()
		for range 50 {
			a.learns("a.test", at("a.test", "192.0.2.1", 300+uint32(Grace.Seconds()/2)))
			time.Sleep(Grace / 200)
		}
		if got := writes() - before; got != 0 {
			t.Errorf("%d writes because of lifetimes that are hardly longer", got)
		}
		time.Sleep(Grace)
		a.learns("a.test", at("a.test", "192.0.2.1", 300))
		cancel()
		if err := <-ended; err != nil || writes() != before+1 {
			t.Errorf("%d writes at the end, want 1, %v", writes()-before, err)
		}
	})
}

// TestAgentsHandNamesOver: while two agents run, what either has saved is known to the other one,
// and neither forgets anything.
func TestAgentsHandNamesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		ctx, cancel := context.WithCancel(ctx)
		n := newNode(t)
		older, newer := n.start(t), n.start(t)
		ended := make(chan error)
		for _, a := range []*agent{older, newer} {
			a.alone = false
			a.Load(ctx)
			go func() { ended <- a.Run(ctx) }()
		}
		older.learns("a.test", at("a.test", "192.0.2.1", 300))
		time.Sleep(3 * settleTime)
		synctest.Wait()
		newer.expect("192.0.2.1", "a.test")
		newer.learns("b.test", at("b.test", "192.0.2.2", 300)) // it has taken over
		older.learns("c.test", at("c.test", "192.0.2.3", 300)) // from its queue
		time.Sleep(3 * settleTime)
		synctest.Wait()
		for _, a := range []*agent{older, newer} {
			a.expect("192.0.2.1", "a.test")
			a.expect("192.0.2.2", "b.test")
			a.expect("192.0.2.3", "c.test")
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		third := n.start(t)
		third.Load(t.Context())
		third.expect("192.0.2.2", "b.test")
		third.expect("192.0.2.3", "c.test")
	})
}

// TestNamesThatCannotBeSaved: the first of several errors is logged, and the file is written when
// that is possible again.
func TestNamesThatCannotBeSaved(t *testing.T) {
	ctx, log := logged(t)
	n := newNode(t)
	a := n.start(t)
	if err := os.Mkdir(n.path, 0o700); err != nil {
		t.Fatal(err)
	}
	a.save(ctx)
	a.save(ctx)
	if strings.Count(log(), "Names are not saved") != 1 || !a.unsaved || testutil.ToFloat64(a.file.Metrics.Writes.WithLabelValues("error")) != 2 {
		t.Errorf("the log says\n%s", log())
	}
	if err := os.Remove(n.path); err != nil {
		t.Fatal(err)
	}
	a.save(ctx)
	if info, err := os.Stat(n.path); a.unsaved || err != nil || info.Size() == 0 {
		t.Error("the file is not written")
	}
}

// FuzzSavedNames: what can be read can be restored, within the bounds, and is saved as it was.
func FuzzSavedNames(f *testing.F) {
	f.Add([]byte(`{"node":"node-1","boot":"boot-1","saved":1}{"p":"pod","n":[{"n":"YS50ZXN0","a":{"192.0.2.1":1000000000000,"2001:db8::1":1}}]}{"p":"other","n":[]}`))
	f.Add([]byte(`{}{"p":"pod","n":[{"n":"YQ==","a":{"192.0.2.1":1}},{"n":"YQ==","a":{"192.0.2.1":2}}]}{"p":"pod","n":[{"n":"YQ==","a":{"192.0.2.1":3}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, pods, _, err := decode(bytes.NewReader(b))
		if err != nil {
			return
		}
		table := newFixture(t)
		table.restore(pods, 0)
		if table.addresses() > 2*MaxAddresses {
			t.Errorf("%d addresses are restored", table.addresses())
		}
		var again bytes.Buffer
		if err := encode(&again, &header{}, table.state()); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := decode(&again); err != nil {
			t.Errorf("what is saved cannot be read: %v", err)
		}
	})
}
