package apiserver

import (
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
)

// Start serves s on loopback with TLS and HTTP/2, in the network namespace of the calling
// thread. The caller must close the result.
func (s *Server) Start() (*httptest.Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	web := &httptest.Server{Listener: listener, EnableHTTP2: true, Config: &http.Server{
		Handler:  s,
		ErrorLog: log.New(io.Discard, "", 0), // connections break when an agent ends
	}}
	web.StartTLS()
	return web, nil
}

// WriteKubeconfig writes a file for clients of the server at url.
func WriteKubeconfig(path, url string) error {
	return os.WriteFile(path, []byte(`apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "`+url+`", insecure-skip-tls-verify: true}}]
users: [{name: agent, user: {}}]
contexts: [{name: cluster, context: {cluster: cluster, user: agent}}]
current-context: cluster
`), 0o600)
}
