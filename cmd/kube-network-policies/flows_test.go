package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
)

// The lines of an agent, whose records change each time it is asked.
const (
	firstLines  = `{"type":"agent","node":"n","time":"2026-01-02T03:04:05Z","cursor":"1-1","flows":1,"maxFlows":8,"evicted":0,"lost":0,"withheld":0}` + "\n" + flowLine
	secondLines = `{"type":"agent","node":"n","time":"2026-01-02T03:04:06Z","cursor":"1-2","flows":1,"maxFlows":8,"evicted":0,"lost":0,"withheld":0}` + "\n" + flowLine
	sameLines   = `{"type":"agent","node":"n","time":"2026-01-02T03:04:07Z","cursor":"1-2","flows":1,"maxFlows":8,"evicted":0,"lost":0,"withheld":0}` + "\n"
	flowLine    = `{"type":"flow","node":"n","source":{"address":"10.0.0.1"},"destination":{"address":"10.0.0.2"},"protocol":"TCP","port":80,"verdict":"allow","direction":"ingress","tier":"default","reason":"not selected","count":2,"first":"2026-01-02T03:04:05Z","last":"2026-01-02T03:04:05Z"}` + "\n"
)

// serveFlows answers at a probe socket as an agent does, until the answers are used up:
// then it calls end.
func serveFlows(t *testing.T, end func(), answers map[string]string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := flows.ParseFilter(r.URL.Query())
		if err != nil {
			t.Error(err)
		}
		answer, ok := answers[f.After]
		if !ok {
			t.Errorf("the agent is asked for what has changed after %q", f.After)
		}
		_, _ = w.Write([]byte(answer))
		if answer == sameLines {
			end()
		}
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

func TestFlows(t *testing.T) {
	for _, tt := range []struct {
		name   string
		follow bool
		want   string
	}{
		{"all records", false, firstLines},
		{"those that change", true, firstLines[:len(firstLines)-len(flowLine)] + secondLines},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			var out bytes.Buffer
			o := newFlowsOptions()
			o.out, o.follow = &out, tt.follow
			o.socket = serveFlows(t, end, map[string]string{"": firstLines, "1-1": secondLines, "1-2": sameLines})
			if err := o.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Errorf("printed (-want +got):\n%s", diff)
			}
		})
	}
}

// Rules are read alone.
func TestFlowsOfRules(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want bool
	}{
		{[]string{"--rules"}, true},
		{[]string{"--rules", "--namespace=shop"}, false},
		{[]string{"--rules", "--denied"}, false},
		{[]string{"--rules", "--follow"}, false},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			o, fs := newFlowsOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
			o.AddFlags(fs)
			if err := fs.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			if err := o.Validate(nil); (err == nil) != tt.want || err != nil && !strings.Contains(err.Error(), "--rules") {
				t.Errorf("got %v, want it valid: %v", err, tt.want)
			}
		})
	}
}

// When the client of a command in a container disconnects, the command's input ends.
func TestFollowingEndsWithItsInput(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, client, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out bytes.Buffer
	o := newFlowsOptions()
	o.in, o.out, o.follow = in, &out, true
	o.socket = serveFlows(t, func() { client.Close() }, map[string]string{"": firstLines, "1-1": secondLines, "1-2": sameLines})
	if err := o.Run(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("error is %v, and %v", err, ctx.Err())
	}
}
