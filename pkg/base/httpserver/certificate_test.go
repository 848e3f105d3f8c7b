package httpserver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAStartWithoutACertificate: the program runs, connections fail, and the certificate is used as soon
// as it can be read.
func TestAStartWithoutACertificate(t *testing.T) {
	for name, make := range map[string]func(cert, key string) error{
		"missing":      func(string, string) error { return nil },
		"empty":        func(cert, key string) error { return os.WriteFile(cert, nil, 0o600) },
		"half written": func(cert, key string) error { return os.WriteFile(cert, []byte("-----BEGIN CERT"), 0o600) },
		"unreadable":   func(cert, key string) error { return os.Mkdir(key, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
			if err := make(certFile, keyFile); err != nil {
				t.Fatal(err)
			}
			var reported []error
			certificate := CertificateFiles(certFile, keyFile, func(err error, inUse bool) {
				if inUse {
					t.Error("a certificate is in use")
				}
				reported = append(reported, err)
			})
			for range 2 {
				if pair, err := certificate(nil); err == nil {
					t.Errorf("got %v", pair)
				}
			}
			if len(reported) != 1 || !strings.Contains(reported[0].Error(), certFile) {
				t.Errorf("reported %v, want the file once", reported)
			}
			for _, file := range []string{certFile, keyFile} {
				if err := os.RemoveAll(file); err != nil {
					t.Fatal(err)
				}
			}
			writePair(t, certFile, keyFile, "a.test")
			if _, err := certificate(nil); err != nil {
				t.Error(err)
			}
		})
	}
}
