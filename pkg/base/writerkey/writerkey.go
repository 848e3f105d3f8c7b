// Package writerkey says how the status writer and the agents prove to each other who they are. It
// owns names and formats, and knows neither the API server nor TLS connections.
//
// A writer makes a key when it starts, and the Lease that elects it names the hash of the public key:
// whoever may write the Lease is the writer. An agent proves itself by a token of its service account,
// which the kubelet binds to its pod. It sends the token only to the writer that has proved in the TLS
// handshake that it has the key. The handshake covers the certificate of the agent, so that no program
// in between can present the writer's key to the agent.
package writerkey

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"strings"
)

const (
	// Lease is the name of the Lease, in the namespace of writer and agents.
	Lease = "kube-network-policies-status"
	// Audience is the audience of the agents' tokens. The API server refuses them for anything but
	// a review.
	Audience = "kube-network-policies-status-writer"
	// TokenHeader is the header of a response that has the token of the agent.
	TokenHeader = "Kube-Network-Policies-Token"
)

// Key is the SHA-256 of a public key, as in the certificate: DER of a SubjectPublicKeyInfo.
type Key [sha256.Size]byte

// Of returns the key of a certificate.
func Of(c *x509.Certificate) Key { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// Identity returns the holder identity of a writer with this key on a host.
func (k Key) Identity(host string) string { return host + "_" + hex.EncodeToString(k[:]) }

// Holds reports whether a holder identity names this key.
func (k Key) Holds(identity string) bool {
	return strings.HasSuffix(identity, k.Identity(""))
}
