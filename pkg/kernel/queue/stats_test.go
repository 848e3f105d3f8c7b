package queue

import (
	"slices"
	"strings"
	"testing"
)

func TestParseStats(t *testing.T) {
	const file = "  100  31414     5 2   128     6     7        8  1\n" +
		"65535 4294967295 16384 0     0 4294967295 0 4294967295  1\n"
	got, err := parseStats(strings.NewReader(file))
	want := []Stat{
		{Number: 100, PortID: 31414, Waiting: 5, CopyMode: 2, CopyRange: 128, QueueDropped: 6, UserDropped: 7, PacketID: 8},
		{Number: 65535, PortID: 1<<32 - 1, Waiting: 16384, QueueDropped: 1<<32 - 1, PacketID: 1<<32 - 1},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// A queue that is bound while the file is read moves the ones after it, so that the kernel may list
// one of them twice. A duplicate metric would fail the whole scrape.
func TestParseStatsOfAQueueThatIsListedTwice(t *testing.T) {
	const file = "200 1 0 2 128 0 0 4 1\n100 1 0 2 128 0 0 0 1\n200 1 3 2 128 0 0 7 1\n"
	got, err := parseStats(strings.NewReader(file))
	want := []Stat{
		{Number: 200, PortID: 1, Waiting: 3, CopyMode: 2, CopyRange: 128, PacketID: 7},
		{Number: 100, PortID: 1, CopyMode: 2, CopyRange: 128},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestParseStatsNamesTheLine(t *testing.T) {
	for _, line := range []string{"", "100 1 0 2 128 0 0", "65536 1 0 2 128 0 0 0 1", "100 1 0 2 128 0 x 0 1", "100 1 0 256 128 0 0 0 1", "-1 1 0 2 128 0 0 0 1"} {
		_, err := parseStats(strings.NewReader("100 1 0 2 128 0 0 0 1\n" + line + "\n"))
		if err == nil || !strings.Contains(err.Error(), `line "`+line+`"`) {
			t.Errorf("%q: error %v, want one that names the line", line, err)
		}
	}
}

func TestNoStatsWithoutTheFile(t *testing.T) {
	if got, err := readStats(t.TempDir() + "/nfnetlink_queue"); got != nil || err != nil {
		t.Errorf("got %v, %v, want nothing", got, err)
	}
}

func FuzzStats(f *testing.F) {
	f.Add("  100  31414     5 2   128     6     7        8  1\n")
	f.Add("")
	f.Add("\n\n")
	f.Add("100 1 0 2 128 0 x 0 1")
	f.Fuzz(func(t *testing.T, file string) {
		stats, err := parseStats(strings.NewReader(file))
		if err == nil && len(stats) > strings.Count(file, "\n")+1 {
			t.Fatalf("%d queues in %q", len(stats), file)
		}
	})
}
