package flows

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// A pod may resolve names at a server of its choice, so names are escaped when they are
// recorded.
func TestNamesAreRecordedPrintable(t *testing.T) {
	r := New(Config{Node: "node-1", Learned: names{outside, "a\x1b[2J\u202e\u009b\xff.example.com"}, Registerer: prometheus.NewRegistry()})
	decide(r, tcp(web, outside, 443), allowed, clusterOf(2), 0)
	var out bytes.Buffer
	if err := Encode(&out, r.Read(Filter{})); err != nil {
		t.Fatal(err)
	}
	if want := `"names":["a\\027\\0912J\\226\\128\\174\\194\\155\\255.example.com"]`; !strings.Contains(out.String(), want) {
		t.Errorf("got %s, want %s", out.String(), want)
	}
}

// Decode makes the answers of all agents printable.
func TestRecordsAreReadPrintable(t *testing.T) {
	const bad = `\u009b2J\u202e\u2028`
	text := `{"type":"flow","node":"` + bad + `","count":1,"first":"2026-01-01T00:00:00Z","last":"2026-01-01T00:00:00Z","protocol":"` + bad + `",` +
		`"verdict":"deny","direction":"` + bad + `","tier":"` + bad + `","reason":"` + bad + `","policy":{"kind":"` + bad + `","namespace":"` + bad + `","name":"` + bad + `"},` +
		`"audit":{"verdict":"allow","reason":"` + bad + `"},` +
		`"source":{"address":"fe80::1%` + bad + `","namespace":"` + bad + `","pod":"` + bad + `"},` +
		`"destination":{"address":"192.0.2.1","block":"` + bad + `","domain":"` + bad + `","names":["` + bad + `"]}}`
	read := 0
	if err := Decode(strings.NewReader(text), func(rec *Record) error {
		read++
		var out bytes.Buffer
		if err := Encode(&out, []Record{*rec}); err != nil {
			return err
		}
		if strings.ContainsAny(out.String(), "\u009b\u202e\u2028") || strings.Contains(out.String(), `\u2028`) {
			t.Errorf("read %s", out.String())
		}
		if want := netip.MustParseAddr("fe80::1%?2J??"); rec.Source.Address != want {
			t.Errorf("the address is %v, want %v", rec.Source.Address, want)
		}
		return nil
	}); err != nil || read != 1 {
		t.Errorf("%d records, %v", read, err)
	}
}
