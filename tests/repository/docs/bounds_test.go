package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// boundsPage has the table of what peers choose.
const boundsPage = "docs/modules/endpoints.md"

var boundsTable = regexp.MustCompile(`(?s)<!-- bounds -->\n.*?<!-- end -->\n`)

// bounded is all that a peer chooses: how much of it, what happens beyond, and the test.
var bounded = []struct{ what, most, beyond, test string }{
	{"TLS handshake: all bytes, so names, chains, server name, protocols", kib(bounds.HandshakeBytes), "closed, nothing is checked or kept", "TestNamesOfUnknownClients, TestHandshakesAreBounded"},
	{"its certificates, if keys are proved", fmt.Sprint(bounds.Certificates), "closed", "TestNamesOfUnknownClients"},
	{"its time: to wait, and to take", span(bounds.HandshakeTime), "closed", "TestHandshakesEndInTime"},
	{"handshakes in a second and at once, of each group", fmt.Sprint(bounds.HandshakeRate), "wait; clients that have begun none for the longest time are next", "TestCrowdOfUnknownClients"},
	{"that wait, of a group and of one client", fmt.Sprintf("%d, %d; where a key was proved, as many as of a group", bounds.HandshakeWaiting, bounds.HandshakeClients), "the last in turn, or the client's oldest, is closed", "TestDoorIsBounded, TestConnectionsOfOneClientWait, TestOthersArriveWithTheWriter"},
	{"that run, of a group", fmt.Sprint(bounds.HandshakeRunning), "the oldest is closed", "TestDoorIsBounded"},
	{"connections of a group and of one client", fmt.Sprintf("%d, %d", bounds.Connections, bounds.ConnectionsPerClient), "an idle one of those with most is closed, or else the new one", "TestWhoIsDisplaced, TestOneClientDoesNotTakeAllConnections"},
	{"connections of this node's own address, and of the socket", fmt.Sprint(bounds.Connections), "the oldest is closed", "TestClientsOfThisMachine, TestSocketIsBounded"},
	{"streams of agents: in all, of one key", fmt.Sprintf("%d, %d", bounds.Connections, bounds.StreamsPerKey), "the oldest is closed", "TestStreamsLeaveThePlacesOfTheWriter, TestOneStreamForEachKey"},
	{"time of a stream", span(bounds.StreamTime), "it ends, the agent proves itself again", "TestStreamsEnd, TestFleetAsksOn"},
	{"time until a request's header, until its end, of the answer, between requests", join(span(bounds.HeaderTime), span(bounds.ReadTime), span(bounds.WriteTime), span(bounds.IdleTime)), "closed", "TestLifetimesOfConnections"},
	{"requests in a second and at once, of a group", fmt.Sprint(bounds.RequestRate), "wait, one of each client", "TestRequestsArePaced, TestRequestsTakeTurns"},
	{"requests of a connection; with keys, one", fmt.Sprint(bounds.RequestsPerConnection), "closed after the answer", "TestRequestsPerConnection"},
	{"HTTP/2", "none", "not offered", "TestMetricsAreForWhoeverMayReadThem, TestRequestsAreBounded"},
	{"header, however many fields", kib(bounds.HeaderBytes), "431", "TestRequestsAreBounded"},
	{"URL with its parameters", kib(bounds.URLBytes), "414", "TestRequestsAreBounded"},
	{"body", fmt.Sprint(bounds.BodyBytes), "413", "TestRequestsAreBounded"},
	{"token", kib(bounds.TokenBytes), "401", "TestTokensAreBounded"},
	{"wait for a version, and how many wait", join(span(bounds.InForceWait), fmt.Sprint(bounds.InForceWaiting)), "400; 429", "TestWaiting, TestWaitingRequestsAreBounded"},
	{"keys whose address is known, and for how long", join(fmt.Sprint(bounds.KnownKeys), span(bounds.KnownFor)), "the oldest is forgotten", "TestProversAreBounded"},
	{"clients whose last handshake is known, and for how long", join(fmt.Sprint(bounds.RecentClients), span(bounds.RecentFor)), "the oldest is forgotten", "TestDoorIsBounded"},
	{"node name in a certificate", fmt.Sprintf("%d bytes, of a node that exists", bounds.Name), "closed, nothing is asked or kept", "TestNamesOfNoNode, TestAgentsOfNodesOnly"},
	{"nodes with agents that are known", fmt.Sprint(bounds.KnownNodes), "the oldest is forgotten", "TestRememberedNodes"},
	{"lists of agents for unknown keys: of a node, in a second, at once", join("1 in "+span(bounds.ListInterval), fmt.Sprint(bounds.ListRate), fmt.Sprint(bounds.ListBurst)), "closed", "TestManyClients"},
	{"reads of the Lease for unknown keys", "1 in " + span(bounds.LeaseInterval), "closed", "TestFloodOfUnknownKeys"},
	{"reviews of unknown tokens in a second, at once; tokens that are known", fmt.Sprintf("%d, %d; %d", bounds.ReviewRate, bounds.ReviewBurst, bounds.Tokens), "429; the oldest is forgotten", "TestReviewsOfUnknownTokensAreBounded, TestReadersAreBounded"},
	{"answer of an agent: header, reason of a failure, time", join(kib(bounds.AnswerHeader), fmt.Sprintf("%d bytes", bounds.AnswerReason), span(bounds.AnswerTime)), "an error", "TestAnswersAreBounded"},
	{"what is in force: bytes, kinds, policies with uncertain pods, text", join(kib(bounds.InForceBytes), fmt.Sprint(bounds.InForceKinds), fmt.Sprint(bounds.InForceUncertain), fmt.Sprintf("%d bytes", bounds.InForceText)), "an error; cut", "TestDecodeRefuses"},
	{"line of new pods: bytes, pods, addresses of one", join(kib(bounds.LineBytes), fmt.Sprint(bounds.LineSandboxes), fmt.Sprint(bounds.LineAddresses)), "the stream ends", "TestAnswersOfAChangedAgent"},
	{"lines in a second and at once; time without one", fmt.Sprintf("%d; %s", bounds.LineRate, span(bounds.LineSilence)), "wait; the stream ends", "TestLinesAreBounded"},
	{"nodes that are asked at a time", fmt.Sprint(bounds.AskedNodes), "not asked, counted", "TestTooManyNodes"},
	{"packets of unknown pods: how long each waits, and how many of unknown sources in a queue", join(span(bounds.PacketWait)+" or "+span(bounds.LongWait), fmt.Sprint(bounds.LongWaiting)), "evaluated by address, or dropped", "TestPendingPacketsAreDecidedInTime, TestPendingPacketsAreBounded"},
}

func kib(bytes int) string { return fmt.Sprintf("%d KiB", bytes>>10) }

func span(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}

func join(all ...string) string { return strings.Join(all, ", ") }

// TestBoundsOfPeers: the page has all of package bounds, with the values of the code and with tests that
// there are.
func TestBoundsOfPeers(t *testing.T) {
	want := "<!-- bounds -->\n\n|what a peer chooses|at most|beyond|tests|\n|---|---|---|---|\n"
	tests := testNames(t)
	for _, b := range bounded {
		for name := range strings.SplitSeq(b.test, ", ") {
			if !tests[name] {
				t.Errorf("%s: there is no %s", b.what, name)
			}
		}
		want += fmt.Sprintf("|%s|%s|%s|`%s`|\n", b.what, b.most, b.beyond, strings.ReplaceAll(b.test, ", ", "`, `"))
	}
	want += "\n<!-- end -->\n"
	for _, name := range boundNames(t) {
		own, err := os.ReadFile("bounds_test.go")
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`bounds\.` + name + `\b`).Match(own) {
			t.Errorf("the table does not have bounds.%s", name)
		}
	}
	page, err := os.ReadFile(filepath.Join(root, boundsPage))
	if err != nil {
		t.Fatal(err)
	}
	if !boundsTable.Match(page) {
		t.Fatalf("%s has no table of bounds", boundsPage)
	}
	now := boundsTable.ReplaceAllLiteralString(string(page), want)
	switch {
	case now == string(page) || t.Failed():
	case *update:
		if err := os.WriteFile(filepath.Join(root, boundsPage), []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is out of date: make docs", boundsPage)
	}
}

// boundNames returns the constants of package bounds that limit peers.
func boundNames(t *testing.T) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "pkg/base/bounds/bounds.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && spec.Names[0].Name != "HeaderSlop" {
			names = append(names, spec.Names[0].Name)
		}
		return true
	})
	return names
}

// testNames returns the names of all tests.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, folder := range []string{"pkg", "tests", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !isTest(path) {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range declared.FindAllSubmatch(text, -1) {
				names[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}
