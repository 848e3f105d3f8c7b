package netns

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// apiAddress is where serveAPI serves.
const apiAddress = "127.0.0.1:6443"

// api returns an API with the cluster's objects and onlyDB.
func (c *cluster) api(t *testing.T) *apiserver.Server {
	t.Helper()
	api := apiserver.New()
	put(t, api, c.Nodes[0].Object(), policyOf(t, onlyDB))
	for _, name := range []string{"x", "y"} {
		put(t, api, lab.NewNamespace(name, map[string]string{"ns": name}))
	}
	for _, pod := range c.Pods {
		put(t, api, pod.Object)
	}
	return api
}

// startWithAPI starts an agent on the first node that reads the API of serveAPI as soon as
// there is one.
func (c *cluster) startWithAPI(t *testing.T, args ...string) *lab.Agent {
	t.Helper()
	return c.startAgent(t, lab.AgentConfig{Args: append(args, kubeconfig(t))})
}

// kubeconfig returns the flag of an agent that reads the API of serveAPI.
func kubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://%s", insecure-skip-tls-verify: true}}]
users: [{name: a, user: {}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
`, apiAddress), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--kubeconfig=" + path
}

// startAgent starts an agent on the first node. Its log is shown if the test fails.
func (c *cluster) startAgent(t *testing.T, cfg lab.AgentConfig) *lab.Agent {
	t.Helper()
	cfg.Binary = cmp.Or(cfg.Binary, labtest.AgentBinary)
	agent, err := c.Nodes[0].StartAgent(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of an agent:\n%s", agent.Log())
		}
		agent.Kill() // before the folders are removed that it may write
	})
	return agent
}

// serveAPI serves an API on the node at apiAddress until stop is called.
func serveAPI(t *testing.T, node *lab.Node, api http.Handler) (stop func()) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	web := &httptest.Server{EnableHTTP2: true, Config: &http.Server{
		Handler: api, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
	}}
	if err := node.Do(func() (err error) {
		web.Listener, err = net.Listen("tcp", apiAddress)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	web.StartTLS()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			end() // of watches, including those on new connections: Close waits for them
			web.CloseClientConnections()
			web.Close()
		}
	}
	t.Cleanup(stop)
	return stop
}

// put adds an object, or policies as text, to an API.
func put(t *testing.T, api *apiserver.Server, objects ...apiserver.Object) {
	t.Helper()
	for _, o := range objects {
		if _, err := api.Put(o); err != nil {
			t.Fatal(err)
		}
	}
}

// policyOf returns the NetworkPolicy in a manifest.
func policyOf(t *testing.T, manifest string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{}
	if err := yaml.Unmarshal([]byte(manifest), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestTheSavedStateIsEnforcedWithoutAnAPIServer: on a node whose table is empty, as after a
// boot, the saved state is enforced from the start of an agent until the API server
// answers.
func TestTheSavedStateIsEnforcedWithoutAnAPIServer(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/web@1 app=web", "y/db@1 app=db")
	node := c.Nodes[0]
	saved := "--snapshot-cache=" + filepath.Join(t.TempDir(), "snapshot")
	api := c.api(t)
	denied, allowed := labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80")

	stopAPI := serveAPI(t, node, api)
	agent := c.startWithAPI(t, saved)
	labtest.WaitReady(t, agent)
	c.Expect(t, denied, allowed, labtest.Yes("x/web", "y/web", "tcp/80"))
	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopAPI()
	if _, err := node.Run(t.Context(), "", "nft", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80")) // no other policy denies it

	agent = c.startWithAPI(t, saved)
	labtest.WaitReady(t, agent)
	c.Expect(t, denied, allowed, labtest.Yes("x/web", "y/web", "tcp/80"))
	m := labtest.Metrics(t, agent)
	if m.Sum("netpol_snapshot_source", "source", "cache") != 1 || m.Sum("netpol_snapshot_age_seconds") <= 0 {
		t.Error("the metrics do not say that the saved state is in force")
	}

	changed := policyOf(t, strings.Replace(onlyDB, "app: db", "app: web", 1))
	put(t, api, changed)
	serveAPI(t, node, api)
	if err := labtest.Within(t, func() bool {
		return labtest.Metrics(t, agent).Sum("netpol_snapshot_source", "source", "cluster") == 1
	}); err != nil {
		t.Fatal(err)
	}
	c.Expect(t, labtest.Yes("y/web", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "tcp/80"))
	if got := labtest.Metrics(t, agent).Sum("netpol_snapshot_age_seconds"); got != 0 {
		t.Errorf("age %v with an API server", got)
	}
}
