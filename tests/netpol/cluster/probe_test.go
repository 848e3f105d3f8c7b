package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// toB returns connections from pods to y/b.
func toB(from ...string) []netpol.Connection {
	var connections []netpol.Connection
	for _, pod := range from {
		connections = append(connections, netpol.Connection{From: pod, To: "y/b", Traffic: netpol.TCP(80).Over(corev1.IPv4Protocol), Silence: time.Second})
	}
	return connections
}

// backendOf returns a backend that knows the address of y/b.
func backendOf(t *testing.T, run runner) *Backend {
	t.Helper()
	b := newWorld(t).backend(t, Config{})
	b.run = run
	b.note("y/b", netpol.Direct, "10.0.0.2")
	return b
}

func TestOutcomes(t *testing.T) {
	w := newWorld(t)
	b := backendOf(t, w.run)
	kinds := map[string]netpol.Outcome{
		"": netpol.Connected, "timeout": netpol.TimedOut, "refused": netpol.Refused, "reset": netpol.Refused,
		"unreachable": netpol.Refused, "other": netpol.Unobservable,
	}
	w.failure = func(from, _ string) string { return strings.TrimPrefix(from, "x/") }
	var connections []netpol.Connection
	var want []netpol.Outcome
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		connections = append(connections, toB("x/"+kind)...)
		want = append(want, kinds[kind])
	}

	nowhere := toB("x/timeout")
	nowhere[0].To = "y/unknown"
	got, err := b.Probe(t.Context(), append(connections, nowhere...))
	if err != nil || !slices.Equal(got, append(want, netpol.Unobservable)) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// One command per pod makes all attempts, until it ends or the pod is deleted.
func TestSessionsStay(t *testing.T) {
	w := newWorld(t)
	b := w.backend(t, Config{})
	state := netpol.Model{}.State()
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	probe := func() {
		t.Helper()
		got, err := b.Probe(t.Context(), toB("x/a", "x/b", "x/a"))
		if err != nil || !slices.Equal(got, slices.Repeat([]netpol.Outcome{netpol.Connected}, 3)) {
			t.Fatalf("got %v, %v", got, err)
		}
	}
	expect := func(a, b int) {
		t.Helper()
		if want := map[string]int{"x/a": a, "x/b": b}; !maps.Equal(w.commands, want) {
			t.Errorf("commands %v, want %v", w.commands, want)
		}
	}
	probe()
	probe()
	expect(1, 1)
	state.RecreatePod("x/a")
	if err := b.Apply(t.Context(), state); err != nil {
		t.Fatal(err)
	}
	probe()
	expect(2, 1)
	b.sessions["x/b"].end() // as if its container had ended
	probe()
	expect(2, 2)
	if environment, err := b.Environment(t.Context()); err != nil || environment.Retries != 0 {
		t.Errorf("%v; %d retries", err, environment.Retries)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}

	if len(b.sessions) > 0 {
		t.Errorf("%d sessions are left", len(b.sessions))
	}
}

// A large table is sent at once, although a pod answers line by line.
func TestManyAttempts(t *testing.T) {
	b := backendOf(t, newWorld(t).run)
	got, err := b.Probe(t.Context(), slices.Repeat(toB("x/a"), 10000))
	if err != nil || slices.ContainsFunc(got, func(o netpol.Outcome) bool { return o != netpol.Connected }) {
		t.Error(err)
	}
}

func TestProbeReturnsErrorOfCommands(t *testing.T) {
	able := newWorld(t)
	b := backendOf(t, func(ctx context.Context, namespace, pod string, command []string, in io.Reader, out, errs io.Writer) error {
		if pod == "able" {
			return able.run(ctx, namespace, pod, command, in, out, errs)
		}
		fmt.Fprintln(errs, "prober: not found")
		return errors.New("exit status 127")
	})
	if _, err := b.Probe(t.Context(), toB("x/unable", "x/unable")); err == nil || !strings.HasSuffix(err.Error(), "exit status 127: prober: not found") {
		t.Errorf("got %v, want why no command could be run", err)
	}
	got, err := b.Probe(t.Context(), toB("x/unable", "x/able"))
	if want := []netpol.Outcome{netpol.Unobservable, netpol.Connected}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if environment, err := b.Environment(t.Context()); err != nil || environment.Retries != 2 {
		t.Errorf("%v; %d retries, want one for each Probe", err, environment.Retries)
	}
}

// Whatever a command writes, Probe returns, and the next Probe starts a new command.
func TestStrangeAnswers(t *testing.T) {
	for name, answers := range map[string]string{
		"none":        "",
		"not JSON":    "connected\n",
		"not asked":   `{"id": 7}`,
		"asked once":  `{"id": 0}{"id": 0}`,
		"cut off":     `{"id": 0`,
		"another one": `{"id": 0, "failure": "timeout"} {"id": -1}`,
	} {
		t.Run(name, func(t *testing.T) {
			commands := 0
			b := backendOf(t, func(ctx context.Context, _, _ string, _ []string, in io.Reader, out, _ io.Writer) error {
				commands++
				_, _ = io.WriteString(out, answers)
				return nil
			})
			for range 2 {
				got, err := b.Probe(t.Context(), toB("x/a", "x/a"))
				if err == nil && got[1] != netpol.Unobservable {
					t.Errorf("got %v", got)
				}
			}
			if commands != 2 {
				t.Errorf("%d commands", commands)
			}
		})
	}
}

func TestProbeEndsWithItsContext(t *testing.T) {
	asked := make(chan bool)
	b := backendOf(t, func(ctx context.Context, _, _ string, _ []string, in io.Reader, _, _ io.Writer) error {
		if _, err := in.Read(make([]byte, 1)); err != nil {
			return err
		}
		close(asked)
		<-ctx.Done()
		return ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()

	if _, err := b.Probe(ctx, toB("x/a")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A name that a pod declares twice is declared by two containers.
func TestNamesThatOccurTwice(t *testing.T) {
	b := newWorld(t).backend(t, Config{})
	pod := netpol.NewPod("x", "a", "node-1", nil)
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{
		{Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns", ContainerPort: 53}, {ContainerPort: 54},
	}
	var got []string
	for _, c := range b.containers(&netpol.State{Ports: []int32{53, 54}}, pod) {
		ports := []string{c.Name, strings.Join(c.Command, " ")}
		for _, p := range c.Ports {
			ports = append(ports, fmt.Sprintf("%s %d/%s", p.Name, p.ContainerPort, p.Protocol))
		}
		got = append(got, strings.Join(ports, ", "))
	}

	want := []string{"prober, prober serve -listen=:53 -listen=:54, dns 53/TCP,  54/TCP,  54/UDP", "prober-1, prober serve -listen=127.0.0.1:0, dns 53/UDP"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Init containers declare their ports, and only sidecars serve while the pod runs.
func TestInitContainers(t *testing.T) {
	pod := netpol.NewPod("x", "a", "node-1", []int32{80})
	pod.Spec.InitContainers = []corev1.Container{
		{Name: "init", Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 81}}},
		{Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Ports: []corev1.ContainerPort{{Name: "dns", ContainerPort: 80, Protocol: corev1.ProtocolUDP}}},
	}
	object, err := newWorld(t).backend(t, Config{}).podObject(&netpol.State{Ports: []int32{80}}, pod)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range object.Spec.InitContainers {
		port := c.Ports[0]
		got = append(got, fmt.Sprintf("%s: %s, %s %d/%s, sidecar %t", c.Name, strings.Join(c.Command, " "), port.Name, port.ContainerPort, port.Protocol, c.RestartPolicy != nil))
	}
	want := []string{"init: prober version, dns 81/TCP, sidecar false", "sidecar: prober serve -listen=127.0.0.1:0, dns 80/UDP, sidecar true"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Raw sockets take a capability that only root keeps, and a namespace that admits it.
func TestSCTP(t *testing.T) {
	w := newWorld(t)
	for _, sctp := range []bool{false, true} {
		b := w.backend(t, Config{SCTP: sctp})
		if got := slices.Contains(b.Supports().Protocols, corev1.ProtocolSCTP); got != sctp {
			t.Errorf("with SCTP %v the backend supports it: %v", sctp, got)
		}
		if err := b.Apply(t.Context(), netpol.Model{Namespaces: []string{"x"}, Pods: []string{"a"}}.State()); err != nil {
			t.Fatal(err)
		}
		pod, _ := w.CoreV1().Pods("t-x").Get(t.Context(), "a", metav1.GetOptions{})
		namespace, _ := w.CoreV1().Namespaces().Get(t.Context(), "t-x", metav1.GetOptions{})
		container := pod.Spec.Containers[0]
		if root := *pod.Spec.SecurityContext.RunAsUser == 0; root != sctp || (namespace.Labels[podSecurityLabel] != "") != sctp ||
			slices.Contains(container.Command, "-sctp") != sctp || slices.Contains(container.SecurityContext.Capabilities.Add, "NET_RAW") != sctp {
			t.Errorf("with SCTP %v the pod is root: %v, runs %q with %v in a namespace with %v", sctp, root, container.Command, container.SecurityContext.Capabilities.Add, namespace.Labels)
		}
	}
}

// Connections are timed one by one, and each must be answered.
func TestTime(t *testing.T) {
	w := newWorld(t)
	b := backendOf(t, w.run)
	took, err := b.Time(t.Context(), toB("x/a", "x/b", "x/a"))
	if want := slices.Repeat([]time.Duration{1500 * time.Microsecond}, 3); err != nil || !slices.Equal(took, want) {
		t.Errorf("got %v, %v, want %v", took, err, want)
	}
	w.failure = func(from, _ string) string { return map[string]string{"x/b": "timeout"}[from] }
	if took, err := b.Time(t.Context(), toB("x/a", "x/b")); err == nil || !strings.Contains(err.Error(), "x/b -> y/b TCP 80") {
		t.Errorf("got %v, %v for a connection without an answer", took, err)
	}
	nowhere := toB("x/a")
	nowhere[0].To = "y/unknown"
	if took, err := b.Time(t.Context(), nowhere); err == nil || !strings.Contains(err.Error(), "no address") {
		t.Errorf("got %v, %v for a pod without an address", took, err)
	}
}
