// Package tlskey says how agents and the status writer prove to each other who they are: by the keys of
// their TLS certificates. It owns names, formats and files, and knows neither the API server nor
// connections.
//
// A status writer makes a key when it starts, and the Lease that elects it names the hash of the public
// key: whoever may write the Lease is the writer. The init container of an agent makes the agent's key
// and leaves the hash as its last message, which the kubelet writes to the status of the agent's pod:
// whoever may write that status, the node's own kubelet, vouches for the node's agent.
//
// The TLS handshake shows that a peer has the key of its certificate. It covers the certificates of both
// sides, so that no program in between can pass it on. No secret leaves its process or its node, and
// nothing is sent that could be used again.
package tlskey

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"time"
)

// validFor is the validity of certificates: longer than any process runs.
const validFor = 10 * 365 * 24 * time.Hour

// Key is the SHA-256 of a public key, as in the certificate: DER of a SubjectPublicKeyInfo.
type Key [sha256.Size]byte

// Of returns the key of a certificate.
func Of(c *x509.Certificate) Key { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// SelfSigned returns a certificate with a new key for a host name. Peers can verify nothing but the key.
func SelfSigned(host string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return certificate(pkix.Name{CommonName: host}, key)
}

func certificate(subject pkix.Name, key *ecdsa.PrivateKey) (*tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      subject,
		DNSNames:     []string{subject.CommonName},
		NotBefore:    time.Now().Add(-time.Hour), // for machines whose clocks are slow
		NotAfter:     time.Now().Add(validFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("self-signed certificate for %q: %w", subject.CommonName, err)
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// ClientConfig returns the configuration of a client that proves itself by own. It believes a server if
// verify returns nil for the server's certificate, and sends it nothing before that.
func ClientConfig(own *tls.Certificate, verify func(*x509.Certificate) error) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{*own},
		InsecureSkipVerify: true, // verify compares the key instead
		VerifyConnection:   func(s tls.ConnectionState) error { return verify(s.PeerCertificates[0]) },
	}
}
