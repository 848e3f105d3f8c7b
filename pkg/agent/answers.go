package agent

import (
	"fmt"
	"net/http"
	"os"
	"strings"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/flows"
	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/httpserver"
	"sigs.k8s.io/kube-network-policies/pkg/base/writerkey"
)

// Answers configures what the status writer asks: recent denials, and what is in force.
type Answers struct {
	// BindAddress is the "host:port" where they are served. Empty serves none.
	BindAddress string
	// Access has the Client that lets the status writer read, and no other client.
	Access *httpserver.Access
	// TokenFile is the file with the token that proves this agent to the status writer.
	TokenFile string
}

// answers returns the handler of what the status writer asks.
func (a *agent) answers() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+flows.DeniedPath, a.flows.ServeDenied)
	mux.Handle("GET "+inforce.Path, a.confirms.tracker)
	return proven(a.logger, a.cfg.Answers.TokenFile, mux)
}

// proven wraps h so that its responses have the token in a file, which the kubelet replaces before it
// expires.
func proven(logger klog.Logger, file string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := os.ReadFile(file)
		if err != nil {
			logger.Error(err, "The status writer cannot know this agent without its token")
			http.Error(w, fmt.Sprintf("the agent has no token: %v", err), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set(writerkey.TokenHeader, strings.TrimSpace(string(token)))
		h.ServeHTTP(w, r)
	})
}
