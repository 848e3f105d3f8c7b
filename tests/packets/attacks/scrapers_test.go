package attacks

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestScrapers: 50 clients in one pod read the metrics as fast as they can while another
// pod opens connections. All connections are established, a scrape of another pod and a
// probe of the kubelet are answered, and collections and requests stay below their limits.
func TestScrapers(t *testing.T) {
	const clients, connects = 50, 300
	c := labtest.NewCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/scraper@1", "z/prometheus@1")
	agent := c.Start(t, "--metrics-bind-address=:9080")[0]
	c.Apply(t, "policies", labtest.Policy("x", "only-db", `{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: db}}}]}]}`))
	c.Expect(t, labtest.Yes("y/db", "x/web", "tcp/80"), labtest.No("y/scraper", "x/web", "tcp/80"))
	endpoint := netip.AddrPortFrom(c.Hosts["node-1"].Addr(lab.IPv4), 9080)
	own := 0 // scrapes from the node's own address, which have no limits
	metrics := func() lab.Metrics {
		own++
		return labtest.Metrics(t, agent)
	}
	before, began := metrics(), time.Now()

	ctx, stop := context.WithCancel(t.Context())
	var scrapers sync.WaitGroup
	defer func() { stop(); scrapers.Wait() }()
	for range clients {
		scrapers.Go(func() { scrapeUntil(ctx, c.Hosts["y/scraper"], endpoint) })
	}
	if err := labtest.Within(t, func() bool { return metrics().Sum("netpol_http_connections_refused_total") > 0 }); err != nil {
		t.Error("no connection beyond the limit is refused")
	}

	var took []time.Duration
	for range connects {
		start := time.Now()
		answer, err := c.Hosts["y/db"].Probe(ctx, lab.TCP, netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv4), 80), labtest.ReadyTimeout)
		if err != nil || answer.Outcome != lab.Connected {
			t.Fatalf("an allowed connection: %v, %v", answer.Outcome, err)
		}
		took = append(took, time.Since(start))
	}
	if err := scrape(ctx, client(c.Hosts["z/prometheus"]), endpoint); err != nil {
		t.Errorf("the scrape of another pod: %v", err)
	}
	if status, body, err := agent.Get(ctx, "/readyz"); err != nil || status != http.StatusOK {
		t.Errorf("the kubelet's probe: %d %s %v", status, body, err)
	}
	slices.Sort(took)
	t.Logf("connects took p50 %v, p99 %v", took[connects/2], took[connects*99/100])

	now := metrics()
	seconds := time.Since(began).Seconds()
	increase := func(name string) float64 { return now.Sum(name) - before.Sum(name) }
	collections, requests := increase("netpol_metrics_collections_total"), increase("promhttp_metric_handler_requests_total")
	t.Logf("%v collections and %v requests in %.1f s, %d of them by this test", collections, requests, seconds, own)
	if limit := seconds + 1 + float64(own); collections > limit {
		t.Errorf("%v collections, want one a second at most, %v", collections, limit)
	}
	if limit := 20*(seconds+1) + float64(own); requests > limit {
		t.Errorf("%v requests were answered, want 20 a second at most, %v", requests, limit)
	}
}

// client returns an HTTP client on a host that uses one connection.
func client(from *lab.Host) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return nil, err
			}
			return from.Dial(ctx, lab.TCP, to)
		},
	}}
}

func scrape(ctx context.Context, client *http.Client, endpoint netip.AddrPort) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+endpoint.String()+"/metrics", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return err
}

// scrapeUntil scrapes in a loop and ignores errors.
func scrapeUntil(ctx context.Context, from *lab.Host, endpoint netip.AddrPort) {
	c := client(from)
	defer c.CloseIdleConnections()
	for ctx.Err() == nil {
		_ = scrape(ctx, c, endpoint)
	}
}
