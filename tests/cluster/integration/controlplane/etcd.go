package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
)

// etcd requires a port even in the address of a unix socket. It then listens on a file with
// this name in its folder.
const (
	etcdSocket = "client:0"
	peerSocket = "peer:0"
)

func (c *ControlPlane) startEtcd(ctx context.Context, binary string) (err error) {
	c.etcd, err = start(c.folder, "etcd", binary,
		"--name=test",
		"--data-dir=etcd",
		"--unsafe-no-fsync",
		"--log-level=warn",
		"--listen-client-urls=unix://"+etcdSocket,
		"--advertise-client-urls=unix://"+etcdSocket,
		"--listen-peer-urls=unix://"+peerSocket,
		"--initial-advertise-peer-urls=unix://"+peerSocket,
		"--initial-cluster=test=unix://"+peerSocket,
	)
	if err != nil {
		return err
	}
	return c.etcd.waitReady(ctx, func(ctx context.Context) error {
		_, err := c.revision(ctx)
		return err
	})
}

// Compact makes etcd forget all revisions but the last. A watch from an older version is then
// refused as too old.
func (c *ControlPlane) Compact(ctx context.Context) error {
	revision, err := c.revision(ctx)
	if err != nil {
		return err
	}
	_, err = c.askEtcd(ctx, "/v3/kv/compaction", map[string]any{"revision": revision, "physical": true})
	return err
}

// revision returns the last revision of etcd, which is a number.
func (c *ControlPlane) revision(ctx context.Context) (string, error) {
	answer, err := c.askEtcd(ctx, "/v3/kv/range", map[string]any{"key": []byte{0}})
	if err != nil {
		return "", err
	}
	var has struct{ Header struct{ Revision string } }
	if err := json.Unmarshal(answer, &has); err != nil {
		return "", fmt.Errorf("etcd's answer %q: %w", answer, err)
	}
	return has.Header.Revision, nil
}

// askEtcd calls etcd's JSON gateway.
func (c *ControlPlane) askEtcd(ctx context.Context, path string, question any) ([]byte, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(c.folder, etcdSocket))
		},
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd %s: %s: %s", path, response.Status, answer)
	}
	return answer, err
}
