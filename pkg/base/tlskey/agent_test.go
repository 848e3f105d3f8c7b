package tlskey

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// podWith is a pod whose init containers have ended with messages.
func podWith(exitCode int32, messages ...string) *corev1.Pod {
	pod := &corev1.Pod{}
	for _, m := range messages {
		pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, corev1.ContainerStatus{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: exitCode, Message: m}},
		})
	}
	return pod
}

// The key that a pod publishes is that of the agent's certificate, whatever else its init containers say.
func TestPublishedKeyIsThatOfTheCertificate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	message, err := Make(file)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := OfAgent("node-1", file)
	if err != nil {
		t.Fatal(err)
	}
	if !IsAgents(certificate.Leaf) || certificate.Leaf.Subject.CommonName != "node-1" {
		t.Errorf("the certificate is of %v", certificate.Leaf.Subject)
	}
	running := podWith(0, message)
	running.Status.InitContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"its message":                   {podWith(0, message), true},
		"with a line break":             {podWith(0, message+"\n"), true},
		"after that of another":         {podWith(0, "done", messagePrefix, message), true},
		"of an init container that ran": {running, false},
		"of a failure":                  {podWith(1, message), false},
		"none":                          {podWith(0), false},
		"an empty one":                  {podWith(0, ""), false},
		"without the prefix":            {podWith(0, strings.TrimPrefix(message, messagePrefix)), false},
		"half a hash":                   {podWith(0, message[:len(message)/2]), false},
		"more than a hash":              {podWith(0, message+"00"), false},
		"no hexadecimal digits":         {podWith(0, messagePrefix+strings.Repeat("xy", 32)), false},
	} {
		if key, ok := OfPod(tc.pod); ok != tc.want || ok && key != Of(certificate.Leaf) {
			t.Errorf("%s: got %x, %v, want a key %v", name, key, ok, tc.want)
		}
	}
}

// A certificate of SelfSigned is no agent's, and each has a key of its own.
func TestSelfSignedIsNoAgents(t *testing.T) {
	var keys []Key
	for range 2 {
		c, err := SelfSigned("node-1")
		if err != nil {
			t.Fatal(err)
		}
		if IsAgents(c.Leaf) || c.Leaf.VerifyHostname("node-1") != nil {
			t.Errorf("the certificate is of %v, for %q", c.Leaf.Subject, c.Leaf.DNSNames)
		}
		keys = append(keys, Of(c.Leaf))
	}
	if keys[0] == keys[1] {
		t.Error("two certificates have one key")
	}
}

// TestKeyIsKept: a container that starts again publishes the same key.
func TestKeyIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	first, err := Make(file)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Make(file); err != nil || second != first {
		t.Errorf("%q, %v, want %q", second, err, first)
	}
	if _, err := Make(filepath.Join(file, "below")); err == nil {
		t.Error("no error for a file that cannot be written")
	}
}

// TestUnusableKeys: an agent does not use such a key, and its init container replaces it.
func TestUnusableKeys(t *testing.T) {
	other := "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n" // Ed25519
	for content, want := range map[string]string{
		"":    "is not PEM",
		"key": "is not PEM",
		"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n": "asn1",
		other: "a key of type ed25519.PrivateKey",
	} {
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OfAgent("node-1", file); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("OfAgent of %q: got %v, want %s", content, err, want)
		}
		message, err := Make(file)
		if err != nil {
			t.Fatalf("Make of %q: %v", content, err)
		}
		certificate, err := OfAgent("node-1", file)
		if err != nil {
			t.Fatalf("after Make of %q: %v", content, err)
		}
		if key, ok := OfPod(podWith(0, message)); !ok || key != Of(certificate.Leaf) {
			t.Errorf("Make of %q publishes %x, %v", content, key, ok)
		}
	}
}
