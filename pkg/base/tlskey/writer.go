package tlskey

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"slices"
	"strings"
)

// Lease is the name of the Lease that elects the status writer, in the namespace of writer and agents.
const Lease = "netpol-status"

// Identity returns the holder identity of a writer with this key on a host.
func (k Key) Identity(host string) string { return host + "_" + hex.EncodeToString(k[:]) }

// Holds reports whether a holder identity names this key.
func (k Key) Holds(identity string) bool {
	return strings.HasSuffix(identity, k.Identity(""))
}

const (
	maxLabel     = 63 // of a DNS name
	secretLength = 32 // of the secret in a server name, in hexadecimal digits
)

// ServerName is the server name of a writer with a certificate: a secret of writer and agent, which only a
// proved key makes known, and the public key, so that who knows its hash by the Lease expects the writer
// before. The name is sent in clear.
func ServerName(secret [secretLength / 2]byte, c *x509.Certificate) string {
	text := []byte(hex.EncodeToString(append(secret[:], c.RawSubjectPublicKeyInfo...)))
	return string(bytes.Join(slices.Collect(slices.Chunk(text, maxLabel)), []byte(".")))
}

// InServerName returns the key in a ServerName.
func InServerName(name string) (k Key, ok bool) {
	text, err := hex.DecodeString(strings.ReplaceAll(name, ".", ""))
	if err != nil || len(text) <= secretLength/2 {
		return k, false
	}
	return sha256.Sum256(text[secretLength/2:]), true
}
