// Package prometheus runs a Prometheus on a node of a lab, for tests.
package prometheus

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// address is where it listens on its node.
const address = "127.0.0.1:9090"

// Need skips a test without a program of Prometheus, unless skips are forbidden.
func Need(t *testing.T, program string) {
	t.Helper()
	_, err := exec.LookPath(program)
	switch {
	case err == nil:
	case os.Getenv("NETNS_REQUIRED") == "":
		t.Skip(err)
	default:
		t.Fatalf("%v (make monitoring-tools installs it)", err)
	}
}

// Server is a Prometheus.
type Server struct{ client *http.Client }

// Start starts a Prometheus on a node, until the test ends. Files are those of its folder,
// by name, and prometheus.yml is its configuration.
func Start(t *testing.T, node *lab.Node, files map[string]string) *Server {
	t.Helper()
	folder := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Run(t, node, "prometheus", "--config.file="+filepath.Join(folder, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(folder, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	return &Server{Client(node)}
}

// Run runs a command on the node until the test ends. Its output is shown if the test fails.
func Run(t *testing.T, node *lab.Node, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var output string
	go func() {
		defer close(ended)
		output, _ = node.Run(ctx, "", name, args...)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("output of %s:\n%s", name, output)
		}
	})
}

// Client returns a client on the node.
func Client(node *lab.Node) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return nil, err
		}
		return node.Dial(ctx, lab.TCP, at)
	}}}
}

// Series is one series of the result of a query.
type Series struct {
	Metric map[string]string
	Value  Point   // of an instant query
	Values []Point // of a range query
}

// Point is a value at a time.
type Point struct {
	Time  float64 // Unix, seconds
	Value float64
}

// UnmarshalJSON reads [TIME, "VALUE"].
func (p *Point) UnmarshalJSON(text []byte) error {
	var value string
	if err := json.Unmarshal(text, &[]any{&p.Time, &value}); err != nil {
		return err
	}
	var err error
	p.Value, err = strconv.ParseFloat(value, 64)
	return err
}

// Query returns the result of a query at this time, none while Prometheus does not serve yet.
func (s *Server) Query(t *testing.T, query string) []Series {
	t.Helper()
	return s.series(t, "query", url.Values{"query": {query}})
}

// QueryRange returns the result of a query for each step of a range of time.
func (s *Server) QueryRange(t *testing.T, query string, from, to time.Time, step time.Duration) []Series {
	t.Helper()
	return s.series(t, "query_range", url.Values{"query": {query}, "start": {from.Format(time.RFC3339Nano)}, "end": {to.Format(time.RFC3339Nano)}, "step": {step.String()}})
}

func (s *Server) series(t *testing.T, api string, parameters url.Values) []Series {
	t.Helper()
	var data struct{ Result []Series }
	s.get(t, api+"?"+parameters.Encode(), &data)
	return data.Result
}

// Target is one that is scraped.
type Target struct {
	ScrapePool string // the job
	ScrapeURL  string
	Health     string // unknown before the first scrape, up or down
	LastError  string
}

// Targets returns the targets, none while Prometheus does not serve yet.
func (s *Server) Targets(t *testing.T) []Target {
	t.Helper()
	var data struct{ ActiveTargets []Target }
	s.get(t, "targets", &data)
	return data.ActiveTargets
}

// get reads the data of an answer, nothing while Prometheus does not serve yet.
func (s *Server) get(t *testing.T, path string, data any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/api/v1/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusServiceUnavailable {
		return
	}
	answer := struct {
		Error string
		Data  any
	}{Data: data}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatalf("%s: %s: %v", path, response.Status, err)
	}
	if answer.Error != "" {
		t.Errorf("%s: %s", path, answer.Error)
	}
}
