// Package agents finds the agents of a cluster and asks them. It knows no answers. An agent may be
// compromised, or be something else that answers at its address.
package agents

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
)

// agentsName is the name that the certificate of agents is verified for.
const agentsName = "kube-network-policies"

// addressFlag is the agents' flag with the address of their server.
const addressFlag = "--metrics-bind-address"

// Timeout is the longest time that one agent may take.
const Timeout = 5 * time.Second

// HTTPS returns a function that requests path from the agent of a pod over TLS, and decodes the
// answer. In dir, the file ca.crt has the PEM certificates that verify the agents' certificate, and
// the file token has the token. A changed token is read again within a minute.
func HTTPS[A any](dir, path string, decode func(io.Reader) (*A, error)) (func(context.Context, *corev1.Pod) (*A, error), error) {
	caFile, tokenFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	for _, file := range []string{caFile, tokenFile} {
		if _, err := os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	client, err := rest.HTTPClientFor(&rest.Config{
		BearerTokenFile: tokenFile,
		Proxy:           func(*http.Request) (*url.URL, error) { return nil, nil },
		TLSClientConfig: rest.TLSClientConfig{CAFile: caFile, ServerName: agentsName},
		Timeout:         Timeout,
	})
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return func(ctx context.Context, pod *corev1.Pod) (*A, error) {
		port, err := portOf(pod)
		if err != nil {
			return nil, err
		}
		address := "https://" + net.JoinHostPort(pod.Status.PodIP, port) + path
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return nil, err
		}
		request.Close = true // an agent has few connections
		response, err := client.Do(request)
		if err != nil {
			return nil, err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s: %s", address, response.Status)
		}
		return decode(response.Body)
	}, nil
}

// portOf returns the port of the agent's addressFlag. Pods of agents declare no container
// ports: on the host network, these would keep the old and the new agent of an update from
// running together.
func portOf(pod *corev1.Pod) (string, error) {
	_, port, err := net.SplitHostPort(addressOf(pod))
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
	return httpserver.DefaultAddress
}
