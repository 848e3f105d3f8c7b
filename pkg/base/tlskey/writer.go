package tlskey

import (
	"encoding/hex"
	"strings"
)

// Lease is the name of the Lease that elects the status writer, in the namespace of writer and agents.
const Lease = "kube-network-policies-status"

// Identity returns the holder identity of a writer with this key on a host.
func (k Key) Identity(host string) string { return host + "_" + hex.EncodeToString(k[:]) }

// Holds reports whether a holder identity names this key.
func (k Key) Holds(identity string) bool {
	return strings.HasSuffix(identity, k.Identity(""))
}
