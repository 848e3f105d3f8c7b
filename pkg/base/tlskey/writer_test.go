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

// A server name is a DNS name with the key of the writer, and no other text is.
func TestServerName(t *testing.T) {
	writer, err := SelfSigned("writer")
	if err != nil {
		t.Fatal(err)
	}
	name := ServerName([16]byte{1, 2}, writer.Leaf)
	if key, ok := InServerName(name); !ok || key != Of(writer.Leaf) {
		t.Errorf("%q has the key %x, %v", name, key, ok)
	}
	if other := ServerName([16]byte{1, 3}, writer.Leaf); other == name {
		t.Error("two secrets have one name")
	}
	for _, label := range strings.Split(name, ".") {
		if len(label) == 0 || len(label) > 63 || len(name) > 253 {
			t.Errorf("%q is no DNS name", name)
		}
	}
	for _, name := range []string{"", ".", "agent.example", strings.Repeat("0", 31), strings.Repeat("0", 32), strings.Repeat("0", 65), "g" + name[1:]} {
		if key, ok := InServerName(name); ok {
			t.Errorf("%q has the key %x", name, key)
		}
	}
}
