package controlplane

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

// The files that hold who may talk to the API server.
const (
	certFile  = "apiserver.crt"
	keyFile   = "apiserver.key"
	tokenFile = "tokens.csv"

	// adminToken is no secret: the server listens on loopback and lives for seconds.
	adminToken = "admin"
)

func writeSecrets(folder string) error {
	crt, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	for name, content := range map[string][]byte{
		certFile:  crt,
		keyFile:   key,
		tokenFile: []byte(adminToken + ",admin,admin,system:masters\n"),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Admin returns the configuration of a client that may do everything.
func (c *ControlPlane) Admin() *rest.Config { return c.with(adminToken) }

// ServiceAccount returns the configuration of a pod with this account: its token, valid for
// an hour.
func (c *ControlPlane) ServiceAccount(ctx context.Context, namespace, name string) (*rest.Config, error) {
	admin, err := kubernetes.NewForConfig(c.Admin())
	if err != nil {
		return nil, err
	}
	token, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token of %s/%s: %w", namespace, name, err)
	}
	return c.with(token.Status.Token), nil
}

func (c *ControlPlane) with(token string) *rest.Config {
	return &rest.Config{
		Host:            "https://" + c.Address(),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(c.folder, certFile)},
		// No rate limit: tests send bursts, and a server without a cluster can handle them.
		QPS: -1,
	}
}

// Kubeconfig writes a kubeconfig file with the access of config, for command line programs.
func Kubeconfig(config *rest.Config, file string) error {
	const name = "test"
	written := clientcmdapi.NewConfig()
	written.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthority: config.CAFile}
	written.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	written.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	written.CurrentContext = name
	return clientcmd.WriteToFile(*written, file)
}
