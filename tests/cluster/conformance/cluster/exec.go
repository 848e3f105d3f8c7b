package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/exec"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// streamTimeout bounds a client that opens no streams, or is idle. No command
// takes as long.
const streamTimeout = time.Minute

// serveExec runs a command in a container.
func (s *Server) serveExec(w http.ResponseWriter, r *http.Request) {
	namespace, name, container := r.PathValue("namespace"), r.PathValue("name"), r.URL.Query().Get("container")
	pod := &corev1.Pod{}
	object, err := s.of(pods, namespace).Get(r.Context(), name, metav1.GetOptions{})
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pod)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == container }) {
		writeError(w, apierrors.NewBadRequest(fmt.Sprintf("container %q is not in pod %s/%s", container, namespace, name)))
		return
	}
	// The API's own parameters are "true", those of the streams' library "1".
	streams := &remotecommand.Options{Stdout: r.URL.Query().Get("stdout") == "true", Stderr: r.URL.Query().Get("stderr") == "true"}
	remotecommand.ServeExec(w, r, containers{s.cfg.Network, namespace}, name, "", container, r.URL.Query()["command"], streams,
		streamTimeout, streamTimeout, remotecommand.SupportedStreamingProtocols)
}

// containers run the one command that suites use.
type containers struct {
	network   Network
	namespace string
}

// ExecInContainer implements remotecommand.Executor. It says what the connect
// command of the agnhost image says: nothing when it has connected.
func (c containers) ExecInContainer(ctx context.Context, name, _, _ string, command []string, _ io.Reader, _, stderr io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	attempt, err := parseConnect(command)
	if err != nil {
		return err
	}
	attempt.From = c.namespace + "/" + name
	outcome, err := c.network.Connect(ctx, attempt)
	said := ""
	switch {
	case err != nil:
		said = "OTHER: " + err.Error()
	case outcome == netpol.Connected:
		return nil
	case outcome == netpol.TimedOut:
		said = "TIMEOUT"
	case outcome == netpol.Refused:
		said = "REFUSED"
	default:
		said = "OTHER: " + outcome.String()
	}
	if _, err := fmt.Fprintln(stderr, said); err != nil {
		return err
	}
	return exec.CodeExitError{Err: errors.New(said), Code: 1}
}

// defaultTimeout is that of agnhost.
const defaultTimeout = 10 * time.Second

// parseConnect reads "/agnhost connect [--timeout=DURATION] [--protocol=NAME]
// ADDRESS:PORT".
func parseConnect(command []string) (Attempt, error) {
	attempt := Attempt{Protocol: corev1.ProtocolTCP, Timeout: defaultTimeout}
	if len(command) < 3 || command[0] != "/agnhost" || command[1] != "connect" {
		return attempt, fmt.Errorf("command %q: only /agnhost connect is there", command)
	}
	options, address := command[2:len(command)-1], command[len(command)-1]
	var err error
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "--timeout":
			if attempt.Timeout, err = time.ParseDuration(value); err != nil {
				return attempt, fmt.Errorf("command %q: %w", command, err)
			}
		case "--protocol":
			attempt.Protocol = corev1.Protocol(strings.ToUpper(value))
		default:
			return attempt, fmt.Errorf("command %q: no option %q", command, name)
		}
	}
	if attempt.To, err = netip.ParseAddrPort(address); err != nil {
		return attempt, fmt.Errorf("command %q: %w", command, err)
	}
	return attempt, nil
}
