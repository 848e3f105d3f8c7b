// Package agents finds the agents of a cluster and asks them. It knows no answers. An agent may be
// compromised, or be something else that answers at its address.
package agents

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/handshake"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

// addressFlag is the agents' flag with the address where they serve the status writer.
const addressFlag = "--status-bind-address"

// Timeout is the longest time that one agent may take.
const Timeout = bounds.AnswerTime

// Client asks agents, and believes only those that prove themselves.
type Client struct {
	certificate *tls.Certificate
	account     string
	identity    string
	secret      string
}

// NewClient returns a Client of a host, with a new key. Agents are pods of a service account.
func NewClient(host, serviceAccount string) (*Client, error) {
	certificate, err := tlskey.SelfSigned(host)
	if err != nil {
		return nil, err
	}
	return &Client{certificate: certificate, account: serviceAccount, identity: tlskey.Of(certificate.Leaf).Identity(host), secret: rand.Text()}, nil
}

// Identity is the holder identity that lets the Client ask.
func (c *Client) Identity() string { return c.identity }

// Ask returns a function that requests path from the agent of a pod, which has to prove itself first, and
// decodes the answer. Errors name the pod.
func Ask[A any](c *Client, path string, decode func(io.Reader) (*A, error)) func(context.Context, *corev1.Pod) (*A, error) {
	return func(ctx context.Context, pod *corev1.Pod) (*A, error) {
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		body, err := c.get(ctx, pod, path)
		if err != nil {
			return nil, fmt.Errorf("pod %s %w", pod.Name, err)
		}
		defer body.Close()
		answer, err := decode(body)
		if err != nil {
			return nil, fmt.Errorf("pod %s answers: %w", pod.Name, err)
		}
		return answer, nil
	}
}

// get requests path from the agent of a pod. The caller closes the body. Errors go on after the name of
// the pod.
func (c *Client) get(ctx context.Context, pod *corev1.Pod, path string) (io.ReadCloser, error) {
	if pod.Spec.ServiceAccountName != c.account {
		return nil, fmt.Errorf("is of the service account %q, not %q", printable.Text(pod.Spec.ServiceAccountName), c.account)
	}
	key, ok := tlskey.OfPod(pod)
	if !ok {
		return nil, errors.New("publishes no key: it is of an earlier version, or lacks the init container of the install file")
	}
	port, err := portOf(pod)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(pod.Status.PodIP, port)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+path, nil)
	if err != nil {
		return nil, err
	}
	config := tlskey.ClientConfig(c.certificate, func(server *x509.Certificate) error { return verify(server, pod, key) })
	config.ServerName = tlskey.ServerName(c.secretFor(key), c.certificate.Leaf)
	proved := false
	// A transport for each request: no connection to one pod serves another, or goes on unproved.
	transport := &http.Transport{
		DisableKeepAlives:      true, // an agent has few connections
		MaxResponseHeaderBytes: bounds.AnswerHeader,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := handshake.Dial(new(net.Dialer).DialContext, config)(ctx, network, address)
			proved = err == nil
			return conn, err
		},
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		if proved && ctx.Err() == nil {
			err = fmt.Errorf("%w: the agent does not know this writer as the holder of the Lease", err)
		}
		return nil, fmt.Errorf("at %s: %w", address, err)
	}
	if response.StatusCode != http.StatusOK {
		reason, _ := io.ReadAll(io.LimitReader(response.Body, bounds.AnswerReason))
		response.Body.Close()
		return nil, fmt.Errorf("at %s: HTTP status %d: %s", address, response.StatusCode, printable.Text(strings.TrimSpace(string(reason))))
	}
	return response.Body, nil
}

// secretFor is the secret by which the agent with a key distinguishes this Client from others behind the
// same address, before the handshake. Other agents cannot compute it.
func (c *Client) secretFor(key tlskey.Key) [16]byte {
	hash := sha256.Sum256(append([]byte(c.secret), key[:]...))
	return [16]byte(hash[:16])
}

// verify returns nil if a certificate is that of the agent of a pod whose status publishes a key.
func verify(c *x509.Certificate, pod *corev1.Pod, key tlskey.Key) error {
	switch {
	case !tlskey.IsAgents(c):
		return errors.New("no key of an agent: its log says why it has none")
	case tlskey.Of(c) != key:
		return errors.New("another key than the pod's status publishes: delete the pod if it lasts")
	// The kubelet of another node may publish the key of this agent, and lead here.
	case c.Subject.CommonName != pod.Spec.NodeName:
		return fmt.Errorf("the agent of another node than %q", pod.Spec.NodeName)
	}
	return nil
}

// portOf returns the port of the agent's addressFlag. Pods of agents declare no container
// ports: on the host network, these would keep the old and the new agent of an update from
// running together.
func portOf(pod *corev1.Pod) (string, error) {
	address := addressOf(pod)
	if address == "" {
		return "", fmt.Errorf("has no %s", addressFlag)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("has %s: %w", addressFlag, err)
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
