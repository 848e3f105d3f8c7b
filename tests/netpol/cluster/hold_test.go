package cluster

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// holdIn answers like "prober hold" in a pod. open returns why a connection fails, "" if it does
// not. Connection i has been silent for i+1 seconds.
func holdIn(open func(pod string, a attempt) string) runner {
	return func(_ context.Context, namespace, pod string, command []string, in io.Reader, out, _ io.Writer) error {
		if !slices.Equal(command, holdCommand) {
			return fmt.Errorf("command %v, want %v", command, holdCommand)
		}
		for lines := bufio.NewScanner(in); lines.Scan(); {
			var a attempt
			if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
				return err
			}
			r := result{ID: a.ID, Silent: float64(a.ID+1) * 1000}
			if a.Target != "" {
				r = result{ID: a.ID, Error: open(namespace+"/"+pod, a)}
				if r.Error != "" {
					r.Failure = "timeout"
				}
			}
			if err := json.NewEncoder(out).Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
}

// Each pod holds its connections, and is asked for how long each is silent.
func TestHold(t *testing.T) {
	b := backendOf(t, holdIn(func(_ string, a attempt) string {
		if a.Target != "tcp://10.0.0.2:80" {
			return "another target: " + a.Target
		}
		return ""
	}))

	held, err := b.Hold(t.Context(), toB("x/a", "x/b", "x/a"))
	if err != nil {
		t.Fatal(err)
	}
	silent, err := held.Silent(t.Context())
	held.Close()

	if want := []time.Duration{time.Second, 2 * time.Second, 3 * time.Second}; err != nil || !slices.Equal(silent, want) {
		t.Errorf("got %v, %v, want %v", silent, err, want)
	}
	if _, err := held.Silent(t.Context()); err == nil {
		t.Error("the commands answer after Close")
	}
}

// No two held connections have the same source port, nor one that the kernel chooses for attempts.
func TestHeldConnectionsHaveTheirOwnPorts(t *testing.T) {
	var mu sync.Mutex
	var ports []int
	b := backendOf(t, holdIn(func(_ string, a attempt) string {
		mu.Lock()
		defer mu.Unlock()
		ports = append(ports, a.SourcePort)
		return ""
	}))

	for range 2 {
		held, err := b.Hold(t.Context(), toB("x/a", "x/b", "x/a"))
		if err != nil {
			t.Fatal(err)
		}
		held.Close()
	}

	slices.Sort(ports)
	if want := []int{10000, 10001, 10002, 10003, 10004, 10005}; !slices.Equal(ports, want) {
		t.Errorf("got %v, want %v", ports, want)
	}
}

func TestHoldReturnsWhatFails(t *testing.T) {
	b := backendOf(t, holdIn(func(pod string, _ attempt) string { return map[string]string{"x/b": "dial tcp: i/o timeout"}[pod] }))
	nowhere := toB("x/a")
	nowhere[0].To = "y/unknown"
	for want, connections := range map[string][]netpol.Connection{
		"x/b: dial tcp: i/o timeout":        toB("x/a", "x/b"),
		"x/a: a destination has no address": nowhere,
	} {
		if _, err := b.Hold(t.Context(), connections); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	b.run = func(context.Context, string, string, []string, io.Reader, io.Writer, io.Writer) error {
		return io.ErrClosedPipe
	}
	if _, err := b.Hold(t.Context(), toB("x/a")); err == nil || !strings.HasPrefix(err.Error(), "x/a: ") {
		t.Errorf("got %v, want why the command does not run", err)
	}
}
