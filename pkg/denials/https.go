package denials

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/flows"
)

// agentsName is the name that the certificate of agents is verified for.
const agentsName = "kube-network-policies"

// HTTPS returns a function for Config.Ask that asks agents at a port over TLS. caFile has the
// certificates that certify the agents' one, in PEM, and tokenFile the token. A changed token
// is read again within a minute.
func HTTPS(port uint16, caFile, tokenFile string) (func(context.Context, *corev1.Pod) (*flows.Denied, error), error) {
	for _, file := range []string{caFile, tokenFile} {
		if _, err := os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	client, err := rest.HTTPClientFor(&rest.Config{
		BearerTokenFile: tokenFile,
		Proxy:           func(*http.Request) (*url.URL, error) { return nil, nil },
		TLSClientConfig: rest.TLSClientConfig{CAFile: caFile, ServerName: agentsName},
		Timeout:         agentTimeout,
	})
	if err != nil {
		return nil, err
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return func(ctx context.Context, pod *corev1.Pod) (*flows.Denied, error) {
		address := "https://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port))) + flows.DeniedPath
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
		return flows.DecodeDenied(response.Body)
	}, nil
}
