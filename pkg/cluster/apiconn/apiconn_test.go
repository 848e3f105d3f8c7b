package apiconn

import (
	"os"
	"testing"

	"k8s.io/client-go/rest"
)

// TestDeadConnectionsAreNoticed: client-go reads the timeouts from the environment. Tests
// with real API servers check their effect.
func TestDeadConnectionsAreNoticed(t *testing.T) {
	for name, tc := range map[string]struct{ idle, ping, wantIdle, wantPing string }{
		"by default":               {"", "", "5", "4"},
		"as the operator says":     {"20", "0", "20", "0"},
		"one of the two is chosen": {"", "3", "5", "3"},
	} {
		t.Run(name, func(t *testing.T) {
			const idle, ping = "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"
			t.Setenv(idle, tc.idle)
			t.Setenv(ping, tc.ping)
			if _, err := new(Connections).Client(&rest.Config{Host: "https://192.0.2.1"}); err != nil {
				t.Fatal(err)
			}
			if got := os.Getenv(idle); got != tc.wantIdle {
				t.Errorf("a connection is pinged after %s s, want %s", got, tc.wantIdle)
			}
			if got := os.Getenv(ping); got != tc.wantPing {
				t.Errorf("an answer may take %s s, want %s", got, tc.wantPing)
			}
		})
	}
	if pingAfter+pingTimeout > 10*1e9 {
		t.Error("a dead connection is noticed after more than ten seconds")
	}
}
