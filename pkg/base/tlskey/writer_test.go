package tlskey

import (
	"crypto/x509"
	"strings"
	"testing"
)

// A holder identity names one key, whatever the host is called.
func TestHolds(t *testing.T) {
	key, other := Of(&x509.Certificate{RawSubjectPublicKeyInfo: []byte("a")}), Of(&x509.Certificate{RawSubjectPublicKeyInfo: []byte("b")})
	for _, tc := range []struct {
		identity string
		want     bool
	}{
		{key.Identity("writer-0"), true},
		{key.Identity("writer_0"), true},
		{key.Identity(""), true},
		{other.Identity("writer-0"), false},
		{key.Identity("writer-0") + "0", false},
		{key.Identity("writer-0") + "_" + "writer-1", false},
		{strings.TrimPrefix(key.Identity(""), "_"), false}, // no host
		{"writer-0_2b0f2a3e-3c1f-4a57-93ab-3c1b6a4a2d51", false},
		{"writer-0_", false},
		{"", false},
	} {
		if got := key.Holds(tc.identity); got != tc.want {
			t.Errorf("Holds(%q) is %v, want %v", tc.identity, got, tc.want)
		}
	}
}
