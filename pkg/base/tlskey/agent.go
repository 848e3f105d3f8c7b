package tlskey

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// File is where the key of an agent is, on a volume of its pod.
const File = "/run/kube-network-policies/key"

// messagePrefix is what the message of the init container has before the hash of the public key.
const messagePrefix = "agent-key sha256:"

// organization tells the certificate of an agent from that of a status writer.
const organization = "kube-network-policies agent"

// Make makes the key of an agent and keeps it in a file, unless the file has one. A file that cannot be
// used, as one that a power failure has left empty, is replaced: without a key, no agent would start. It
// returns the message that publishes it: the kubelet writes the last message of a container that has ended to the
// pod's status, which only the kubelet of the node may write.
func Make(file string) (message string, err error) {
	key, err := read(file)
	if err != nil {
		key, err = write(file)
	}
	if err != nil {
		return "", err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", err
	}
	hash := Of(&x509.Certificate{RawSubjectPublicKeyInfo: public})
	return messagePrefix + hex.EncodeToString(hash[:]), nil
}

// OfPod returns the key that the status of an agent's pod publishes.
func OfPod(pod *corev1.Pod) (key Key, ok bool) {
	for _, s := range pod.Status.InitContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
			continue
		}
		text, found := strings.CutPrefix(strings.TrimSpace(s.State.Terminated.Message), messagePrefix)
		if !found {
			continue
		}
		if hash, err := hex.DecodeString(text); err == nil && len(hash) == len(key) {
			return Key(hash), true
		}
	}
	return key, false
}

// OfAgent returns a certificate for a node with the key of its agent in a file.
func OfAgent(node, file string) (*tls.Certificate, error) {
	key, err := read(file)
	if err != nil {
		return nil, err
	}
	return certificate(pkix.Name{CommonName: node, Organization: []string{organization}}, key)
}

// IsAgents reports whether a certificate says that it is an agent's. Only its key shows whether it is.
func IsAgents(c *x509.Certificate) bool { return slices.Contains(c.Subject.Organization, organization) }

func write(file string) (*ecdsa.PrivateKey, error) {
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

func read(file string) (*ecdsa.PrivateKey, error) {
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
