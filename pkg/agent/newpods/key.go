package newpods

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/base/writerkey"
)

// KeyFile is where the key of an agent is, on a volume of its pod.
const KeyFile = "/run/kube-network-policies/key"

// keyPrefix is what the message of the init container has before the hash of the public key.
const keyPrefix = "agent-key sha256:"

// organization tells the certificate of an agent from that of a status writer.
const organization = "kube-network-policies agent"

// validFor is the validity of certificates: longer than any pod runs.
const validFor = 10 * 365 * 24 * time.Hour

// MakeKey makes the key of an agent and keeps it in a file, unless the file has one. It returns the
// message that publishes it: the kubelet writes the last message of a container that has ended to the
// pod's status, which only the kubelet of the node may write.
func MakeKey(file string) (message string, err error) {
	key, err := readKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err = writeKey(file)
	}
	if err != nil {
		return "", err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	hash := writerkey.Of(&x509.Certificate{RawSubjectPublicKeyInfo: public})
	return keyPrefix + hex.EncodeToString(hash[:]), nil
}

// keyOf returns the key that the status of an agent's pod publishes.
func keyOf(pod *corev1.Pod) (key writerkey.Key, ok bool) {
	for _, s := range pod.Status.InitContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
			continue
		}
		text, found := strings.CutPrefix(strings.TrimSpace(s.State.Terminated.Message), keyPrefix)
		if !found {
			continue
		}
		if hash, err := hex.DecodeString(text); err == nil && len(hash) == len(key) {
			return writerkey.Key(hash), true
		}
	}
	return key, false
}

// IsAgents reports whether a certificate says that it is an agent's. Agents.Check decides whether it is.
func IsAgents(c *x509.Certificate) bool { return slices.Contains(c.Subject.Organization, organization) }

func writeKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// It is renamed, so that a file with this name is complete.
	temporary := filepath.Join(filepath.Dir(file), "."+filepath.Base(file))
	if err := os.WriteFile(temporary, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return nil, fmt.Errorf("key of the agent: %w", err)
	}
	if err := os.Rename(temporary, file); err != nil {
		return nil, fmt.Errorf("key of the agent: %w", err)
	}
	return key, nil
}

func readKey(file string) (*ecdsa.PrivateKey, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("key of the agent: %w", err)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("key of the agent: %s is not PEM", file)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key of the agent: %s: %w", file, err)
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key of the agent: %s has a key of type %T", file, key)
	}
	return private, nil
}

// Certificate returns a certificate for a node with the key of its agent in a file. Others know it by
// its key alone.
func Certificate(node, file string) (*tls.Certificate, error) {
	key, err := readKey(file)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: node, Organization: []string{organization}},
		NotBefore:    time.Now().Add(-time.Hour), // for machines whose clocks are slow
		NotAfter:     time.Now().Add(validFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("certificate of node %q: %w", node, err)
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
