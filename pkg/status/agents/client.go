// Package agents finds the agents of a cluster and asks them. It knows no answers. An agent may be
// compromised, or be something else that answers at its address.
package agents

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/base/writerkey"
)

// addressFlag is the agents' flag with the address where they serve the status writer.
const addressFlag = "--status-bind-address"

// Timeout is the longest time that one agent may take.
const Timeout = 5 * time.Second

// Bounds of a response, in addition to those of its decoder.
const (
	maxHeader = 32 << 10 // a token has one or two kilobytes
	maxReason = 256
)

// Client asks agents, and believes only those that prove themselves.
type Client struct {
	http     *http.Client
	identity string
	tokens   *reviewer
}

// NewClient returns a Client of a host, with a new key. Agents are pods of a service account in a
// namespace. client reviews their tokens.
func NewClient(host string, client kubernetes.Interface, namespace, serviceAccount string) (*Client, error) {
	certificate, err := httpserver.SelfSigned(host)
	if err != nil {
		return nil, err
	}
	pair, err := certificate(nil)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, err
	}
	return &Client{
		identity: writerkey.Of(parsed).Identity(host),
		http: &http.Client{
			Transport: &http.Transport{
				DisableKeepAlives:      true, // an agent has few connections
				MaxResponseHeaderBytes: maxHeader,
				TLSClientConfig: &tls.Config{
					MinVersion:   tls.VersionTLS13,
					Certificates: []tls.Certificate{*pair},
					// The token of the response proves the agent. No other client can make the agent
					// send it: the signature of this client covers the certificate of the server.
					InsecureSkipVerify: true,
				},
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Timeout:       Timeout,
		},
		tokens: newReviewer(client, namespace, serviceAccount),
	}, nil
}

// Identity is the holder identity that lets the Client ask.
func (c *Client) Identity() string { return c.identity }

// Ask returns a function that requests path from the agent of a pod, and decodes the answer once the
// agent has proved that it runs in the pod.
func Ask[A any](c *Client, path string, decode func(io.Reader) (*A, error)) func(context.Context, *corev1.Pod) (*A, error) {
	return func(ctx context.Context, pod *corev1.Pod) (*A, error) {
		body, err := c.get(ctx, pod, path)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		return decode(body)
	}
}

// get requests path from the agent of a pod. The caller closes the body.
func (c *Client) get(ctx context.Context, pod *corev1.Pod, path string) (io.ReadCloser, error) {
	port, err := portOf(pod)
	if err != nil {
		return nil, err
	}
	address := "https://" + net.JoinHostPort(pod.Status.PodIP, port) + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, explain(err)
	}
	if err := c.check(ctx, pod, response); err != nil {
		response.Body.Close()
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return response.Body, nil
}

// check returns nil if a response is the answer of the agent of a pod.
func (c *Client) check(ctx context.Context, pod *corev1.Pod, response *http.Response) error {
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, maxReason))
		return fmt.Errorf("HTTP status %d: %s", response.StatusCode, printable.Text(strings.TrimSpace(string(reason))))
	}
	return c.tokens.check(ctx, pod, response.Header.Get(writerkey.TokenHeader))
}

// explain says what it means that the server ends the handshake.
func explain(err error) error {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		return fmt.Errorf("%w: the agent does not know this writer as the holder of the Lease", err)
	}
	return err
}

// portOf returns the port of the agent's addressFlag. Pods of agents declare no container
// ports: on the host network, these would keep the old and the new agent of an update from
// running together.
func portOf(pod *corev1.Pod) (string, error) {
	address := addressOf(pod)
	if address == "" {
		return "", fmt.Errorf("pod %s has no %s", pod.Name, addressFlag)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%s of pod %s: %w", addressFlag, pod.Name, err)
	}
	return port, nil
}

func addressOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		args := slices.Concat(c.Command, c.Args)
		for i, arg := range args {
			if value, ok := strings.CutPrefix(arg, addressFlag+"="); ok {
				return value
			}
			if arg == addressFlag && i+1 < len(args) {
				return args[i+1]
			}
		}
	}
	return ""
}
