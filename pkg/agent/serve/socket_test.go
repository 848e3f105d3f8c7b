package serve

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// Records of flows are read from the socket, and wrong filters are refused.
func TestFlowsAreReadFromTheSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "probe")
	reg := httpserver.NewRegistry()
	ok := func() error { return nil }
	recorder := flows.New(flows.Config{Node: "node-1", Registerer: prometheus.NewRegistry()})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	server := httpserver.New(httpserver.Handler(reg, ok, ok), nil, reg)
	go func() {
		done <- serveSocket(ctx, withHandlers(server, []module.Handler{{To: module.Writer, Pattern: "GET /writer", Handler: recorder}, {To: module.Socket, Pattern: "GET /" + flows.Path, Handler: recorder}}), socket)
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	within, stop := context.WithTimeout(ctx, 15*time.Second)
	defer stop()
	for err := Probe(within, socket, "livez", io.Discard); err != nil; err = Probe(within, socket, "livez", io.Discard) {
		if within.Err() != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is for its owner alone: %v, %v", info.Mode(), err)
	}
	var metrics strings.Builder
	if err := Probe(ctx, socket, "metrics", &metrics); err != nil || !strings.Contains(metrics.String(), "# HELP ") {
		t.Errorf("metrics %q, %v", metrics.String(), err)
	}
	body, err := Get(ctx, socket, flows.Path+"?"+flows.Filter{Denied: true}.Values().Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	var types []string
	if err := flows.Decode(body, func(r *flows.Record) error { types = append(types, r.Node+" "+r.Type); return nil }); err != nil || fmt.Sprint(types) != "[node-1 agent]" {
		t.Errorf("records %q, %v", types, err)
	}
	if _, err := Get(ctx, socket, flows.Path+"?nodes=1"); err == nil || !strings.Contains(err.Error(), `flows: "nodes" is not known`) {
		t.Errorf("a wrong filter: %v", err)
	}
	if _, err := Get(ctx, socket, "writer"); err == nil {
		t.Error("the socket serves what the status writer asks")
	}
	if _, err := Get(ctx, socket+"x", flows.Path); err == nil || !strings.Contains(err.Error(), "flows at "+socket+"x") {
		t.Errorf("no socket: %v", err)
	}
}

// The port of metrics and probes has no records of flows.
func TestFlowsAreNotServedAtThePort(t *testing.T) {
	reg := httpserver.NewRegistry()
	ok := func() error { return nil }
	w := httptest.NewRecorder()
	httpserver.Handler(reg, ok, ok).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+flows.Path, nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("status %d", w.Code)
	}
}
