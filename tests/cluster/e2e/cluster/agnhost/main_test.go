package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseConnect(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want connectCommand
	}{
		"joined":        {[]string{"--timeout=3s", "--protocol=sctp", "10.0.0.1:80"}, connectCommand{"10.0.0.1:80", "sctp", 3 * time.Second}},
		"apart":         {[]string{"[fd00::1]:80", "--timeout", "1s", "--protocol", "udp"}, connectCommand{"[fd00::1]:80", "udp", time.Second}},
		"other flags":   {[]string{"--udp-data=x", "10.0.0.1:80"}, connectCommand{address: "10.0.0.1:80"}},
		"no arguments":  {nil, connectCommand{}},
		"without value": {[]string{"--protocol"}, connectCommand{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseConnect(test.args)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(connectCommand{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseConnectRefusesATimeoutThatIsNone(t *testing.T) {
	if _, err := parseConnect([]string{"--timeout=soon"}); err == nil {
		t.Error("no error")
	}
}

func TestPortsOfTheEnvironment(t *testing.T) {
	got, err := sctpPorts([]string{"PATH=/bin", "SERVE_SCTP_PORT_80=foo", "SERVE_SCTP_PORT_9003=", "SERVE_PORT_81=foo"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[uint16]bool{80: true, 9003: true}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := sctpPorts([]string{"SERVE_SCTP_PORT_eighty=foo"}); err == nil {
		t.Error("no error for a port that is not a number")
	}
}

func TestChunksAreReadAsTheyWereWritten(t *testing.T) {
	want := chunk{kind: initAckChunk, from: 80, to: 40000, verification: 7, tag: 9}
	got, ok := parseChunk(want.bytes())
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(chunk{})); !ok || diff != "" {
		t.Error(ok, diff)
	}
	if _, ok := parseChunk(want.bytes()[:31]); ok {
		t.Error("a packet that is cut off was read")
	}
}
