package cluster

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// atOnce bounds the commands that run at the same time.
const atOnce = 30

// runner runs a command in a container of a pod and returns what it prints. A
// command that ran and failed has an error with an ExitStatus.
type runner func(ctx context.Context, namespace, pod, container string, command []string) (output string, err error)

// newExec returns a runner over the API server.
func newExec(access *rest.Config, client kubernetes.Interface) runner {
	return func(ctx context.Context, namespace, pod, container string, command []string) (string, error) {
		request := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
		executor, err := remotecommand.NewWebSocketExecutor(access, "GET", request.URL().String())
		if err != nil {
			return "", err
		}
		var output bytes.Buffer
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &output, Stderr: &output})
		return output.String(), err
	}
}

// Probe runs a command for each connection.
func (b *Backend) Probe(ctx context.Context, connections []netpol.Connection) ([]netpol.Outcome, error) {
	outcomes := make([]netpol.Outcome, len(connections))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i, connection := range connections {
		group.Go(func() (err error) {
			outcomes[i], err = b.connect(ctx, connection)
			return err
		})
	}
	return outcomes, group.Wait()
}

// connect makes one attempt. An attempt that the API server or the container
// cannot make is Unobservable.
func (b *Backend) connect(ctx context.Context, c netpol.Connection) (netpol.Outcome, error) {
	addr := b.address(c)
	if addr == "" {
		return netpol.Unobservable, nil
	}
	protocol := strings.ToLower(string(c.Protocol))
	namespace, pod, _ := strings.Cut(c.From, "/")
	output, err := b.run(ctx, namespace, pod, clientContainer, []string{
		"/agnhost", "connect", "--timeout=" + c.Silence.String(), "--protocol=" + protocol,
		net.JoinHostPort(addr, strconv.Itoa(int(c.Port))),
	})
	return outcomeOf(output, err), ctx.Err()
}

// outcomeOf reads what the command says. Only a command that ran says anything.
func outcomeOf(output string, err error) netpol.Outcome {
	var exit exec.CodeExitError
	switch {
	case err == nil:
		return netpol.Connected
	case !errors.As(err, &exit):
		return netpol.Unobservable
	case strings.HasPrefix(strings.TrimSpace(output), "TIMEOUT"):
		return netpol.TimedOut
	case strings.HasPrefix(strings.TrimSpace(output), "REFUSED"):
		return netpol.Refused
	default:
		return netpol.Unobservable
	}
}

// address returns where a connection goes, empty if there is no such address.
func (b *Backend) address(c netpol.Connection) string {
	b.mu.RLock()
	defer b.mu.RUnlock()
	addresses := b.addresses
	if c.Via == netpol.Service || b.cfg.ViaServices {
		addresses = b.services
	}
	return addresses[key(c.To, c.Family)]
}

// key names an address of a pod or of its Service.
func key(pod string, family corev1.IPFamily) string { return pod + " " + string(family) }
