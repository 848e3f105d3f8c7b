package httpserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Fixed returns one certificate for all connections, as Access.Certificate.
func Fixed(c *tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c, nil }
}

// CertificateFiles returns the certificate in PEM files, as Access.Certificate. Changed
// files are read again for the next connection. If that fails, the error is reported once
// and the previous certificate stays in use. While there is none, connections fail.
func CertificateFiles(certificate, key string, report func(err error, inUse bool)) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f := &certificateFiles{certificate: certificate, key: key}
	current := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err := f.read(); err != nil {
			report(err, f.pair != nil)
		}
		if f.pair == nil {
			return nil, errNoCertificate
		}
		return f.pair, nil
	}
	_, _ = current(nil) // the error is reported
	return current
}

var errNoCertificate = errors.New("no certificate could be read yet")

type certificateFiles struct {
	certificate, key string

	mu    sync.Mutex
	tried bool
	seen  [2]fileState // at the last attempt to read
	pair  *tls.Certificate
}

// fileState changes with the file. It is zero if there is no file.
type fileState struct {
	modified time.Time
	size     int64
}

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	return fileState{info.ModTime(), info.Size()}
}

// read reads the files if they changed since the last attempt.
func (f *certificateFiles) read() error {
	now := [2]fileState{stateOf(f.certificate), stateOf(f.key)}
	if f.tried && now == f.seen {
		return nil
	}
	f.tried, f.seen = true, now
	pair, err := tls.LoadX509KeyPair(f.certificate, f.key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", f.certificate, f.key, err)
	}
	f.pair = &pair
	return nil
}
