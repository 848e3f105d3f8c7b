package otlp

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-network-policies/pkg/flows"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// receiver is a collector. It refuses what it gets while refuses is set.
type receiver struct {
	t       *testing.T
	refuses bool
	asked   int
	paths   []string
	got     []*collector.ExportMetricsServiceRequest
}

// ServeHTTP implements http.Handler.
func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.asked++
	if c.refuses {
		http.Error(w, "no space", http.StatusServiceUnavailable)
		return
	}
	body, err := gzip.NewReader(r.Body)
	if err != nil {
		c.t.Error(err)
		return
	}
	message, err := io.ReadAll(body)
	request := &collector.ExportMetricsServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(message, request)
	}
	if err != nil {
		c.t.Error(err)
	}
	c.paths = append(c.paths, r.URL.Path)
	c.got = append(c.got, request)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func textOf(all []*common.KeyValue) string {
	var parts []string
	for _, a := range all {
		if n, ok := a.Value.Value.(*common.AnyValue_IntValue); ok {
			parts = append(parts, fmt.Sprintf("%s=%d", a.Key, n.IntValue))
		} else {
			parts = append(parts, a.Key+"="+a.Value.GetStringValue())
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// lines returns the data points of requests as text.
func lines(requests []*collector.ExportMetricsServiceRequest) (all []string) {
	for _, request := range requests {
		for _, r := range request.ResourceMetrics {
			for _, scope := range r.ScopeMetrics {
				for _, m := range scope.Metrics {
					points := m.GetGauge().GetDataPoints()
					kind := "gauge"
					if sum := m.GetSum(); sum != nil {
						points, kind = sum.DataPoints, fmt.Sprintf("monotonic=%v %v", sum.IsMonotonic, sum.AggregationTemporality)
					}
					for _, p := range points {
						since := int64(p.TimeUnixNano) - int64(p.StartTimeUnixNano)
						if p.StartTimeUnixNano == 0 {
							since = 0
						}
						all = append(all, fmt.Sprintf("%s %s %s since %v: %d %s", textOf(r.Resource.Attributes), m.Name, kind, time.Duration(since), p.GetAsInt(), textOf(p.Attributes)))
					}
				}
			}
		}
	}
	return all
}

func end(namespace, pod, addr string) *flows.End {
	return &flows.End{Namespace: namespace, Pod: pod, Address: netip.MustParseAddr(addr)}
}

// flow returns the record of a flow that began a minute ago.
func flow(from, to *flows.End, port uint16, d flows.Decision, count uint64) flows.Record {
	first := now.Add(-time.Minute)
	return flows.Record{Type: flows.TypeFlow, Node: "node-1", Source: from, Destination: to, Protocol: "TCP", Port: port, Decision: d, Count: count, First: &first, Last: &now}
}

func exporter(t *testing.T, url string, records func() []flows.Record) (*Exporter, *prometheus.Registry) {
	t.Helper()
	endpoint, err := ParseEndpoint(url)
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	e, err := New(t.Context(), Config{Endpoint: endpoint, Interval: time.Minute, Node: "node-1", Version: "v1", Read: func() []flows.Record {
		return append([]flows.Record{{Type: flows.TypeAgent, Node: "node-1", Time: &now}}, records()...)
	}, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	return e, reg
}

func TestACollectorReceivesFlows(t *testing.T) {
	rule, bytes := 2, uint64(1500)
	byRule := flows.Decision{Verdict: "allow", Direction: "ingress", Tier: "networkpolicy", Reason: "rule matched", Policy: &flows.Policy{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}, Rule: &rule}
	isolated := flows.Decision{Verdict: "deny", Direction: "egress", Tier: "networkpolicy", Reason: "isolated", Policy: &flows.Policy{Kind: "NetworkPolicy", Namespace: "shop", Name: "web"}}
	web, db := end("shop", "web-0", "10.0.0.1"), end("shop", "db-0", "10.0.0.2")
	block := end("", "", "192.0.2.1")
	block.Block = "192.0.2.0/24"
	counted := flow(web, db, 5432, byRule, 3)
	counted.Bytes = &bytes
	audited := flow(web, end("", "", "198.51.100.1"), 443, flows.Decision{Verdict: "allow", Direction: "egress", Tier: "default", Reason: "not selected"}, 1)
	audited.Audit = &isolated
	denial := flow(web, db, 1, isolated, 0)
	denial.Type = flows.TypeDenial
	records := []flows.Record{
		counted, flow(web, db, 5432, byRule, 4), flow(web, block, 443, byRule, 5), flow(web, block, 80, isolated, 6), audited, denial,
	}
	c := &receiver{t: t}
	server := httptest.NewServer(c)
	defer server.Close()
	e, reg := exporter(t, server.URL, func() []flows.Record { return records })
	e.export(t.Context())
	const (
		of       = "k8s.node.name=node-1 service.name=kube-network-policies service.version=v1 "
		packets  = of + "netpol.flow.packets monotonic=true AGGREGATION_TEMPORALITY_CUMULATIVE since 1m0s: "
		fromWeb  = " source.address=10.0.0.1 source.k8s.namespace.name=shop source.k8s.pod.name=web-0"
		toDB     = "destination.address=10.0.0.2 destination.k8s.namespace.name=shop destination.k8s.pod.name=db-0 destination.port=5432"
		byDB     = " netpol.direction=ingress netpol.policy.kind=NetworkPolicy netpol.policy.name=db netpol.policy.namespace=shop netpol.reason=rule matched netpol.rule=2 netpol.tier=networkpolicy netpol.verdict=allow network.transport=tcp"
		byWeb    = "direction=egress netpol.policy.kind=NetworkPolicy netpol.policy.name=web netpol.policy.namespace=shop netpol.reason=isolated netpol.tier=networkpolicy netpol.verdict=deny"
		isolates = "netpol.audit.direction=egress netpol.audit.policy.kind=NetworkPolicy netpol.audit.policy.name=web netpol.audit.policy.namespace=shop netpol.audit.reason=isolated netpol.audit.tier=networkpolicy netpol.audit.verdict=deny"
	)
	want := []string{
		packets + "7 " + toDB + byDB + fromWeb,
		packets + "5 destination.block=192.0.2.0/24 destination.port=443" + byDB + fromWeb,
		packets + "6 destination.address=192.0.2.1 destination.block=192.0.2.0/24 destination.port=80 netpol." + byWeb + " network.transport=tcp" + fromWeb,
		packets + "1 destination.address=198.51.100.1 destination.port=443 " + isolates + " netpol.direction=egress netpol.reason=not selected netpol.tier=default netpol.verdict=allow network.transport=tcp" + fromWeb,
		of + "netpol.flow.open.bytes gauge since 0s: 1500 " + toDB + byDB + fromWeb,
	}
	if diff := cmp.Diff(want, lines(c.got)); diff != "" {
		t.Errorf("data points (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"/v1/metrics"}, c.paths); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	checkPoints(t, reg, 4, 0)
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

func checkPoints(t *testing.T, reg *prometheus.Registry, sent, dropped int) {
	t.Helper()
	want := fmt.Sprintf(`
# HELP netpol_otlp_points_total Data points of flows for the OpenTelemetry collector, by whether it has taken them (sent) or not (dropped).
# TYPE netpol_otlp_points_total counter
netpol_otlp_points_total{result="dropped"} %d
netpol_otlp_points_total{result="sent"} %d
`, dropped, sent)
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// What a collector refuses is dropped and counted, nothing is kept, and one request is
// enough to find out.
func TestWhatACollectorDoesNotTakeIsDropped(t *testing.T) {
	const many = 2*batch + 10
	var records []flows.Record
	for port := range uint16(many) {
		records = append(records, flow(end("shop", "web-0", "10.0.0.1"), end("shop", "db-0", "10.0.0.2"), port+1, flows.Decision{Verdict: "allow"}, 1))
	}
	c := &receiver{t: t, refuses: true}
	server := httptest.NewServer(c)
	defer server.Close()
	e, reg := exporter(t, server.URL+"/otlp/", func() []flows.Record { return records })
	e.export(t.Context())
	if c.asked != 1 {
		t.Errorf("%d requests to a collector that refuses the first one", c.asked)
	}
	checkPoints(t, reg, 0, many)
	c.refuses = false
	e.export(t.Context())
	if n := len(lines(c.got)); n != many || len(c.got) != 3 {
		t.Errorf("%d points in %d requests, want %d in 3", n, len(c.got), many)
	}
	checkPoints(t, reg, many, many)
	if diff := cmp.Diff([]string{"/otlp/", "/otlp/", "/otlp/"}, c.paths); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	server.Close()
	e.export(t.Context())
	checkPoints(t, reg, many, 2*many)
}

// A collector that hangs delays the end of the agent by nothing.
func TestRunEndsWithItsContext(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(asked); <-release }))
	defer server.Close()
	defer close(release)
	e, _ := exporter(t, server.URL, func() []flows.Record {
		return []flows.Record{flow(end("shop", "web-0", "10.0.0.1"), end("shop", "db-0", "10.0.0.2"), 80, flows.Decision{Verdict: "allow"}, 1)}
	})
	e.cfg.Interval = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.Run(ctx) }()
	<-asked
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestRunReadsOnceInAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		e, _ := exporter(t, "http://127.0.0.1:1", func() []flows.Record { reads++; return nil })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- e.Run(ctx) }()
		time.Sleep(3*time.Minute + time.Second)
		cancel()
		if err := <-ended; err != nil || reads != 3 {
			t.Errorf("%d reads in three minutes, error %v", reads, err)
		}
	})
}

// Over https, the certificate of the collector must be signed by one that is trusted.
func TestACollectorIsAuthenticated(t *testing.T) {
	c := &receiver{t: t}
	server := httptest.NewTLSServer(c)
	defer server.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, trusts := range []bool{false, true} {
		endpoint, err := ParseEndpoint(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		if trusts {
			pool.AddCert(server.Certificate())
		}
		reg := prometheus.NewRegistry()
		e, err := New(t.Context(), Config{Endpoint: endpoint, TLS: &tls.Config{RootCAs: pool}, Node: "node-1", Registerer: reg, Read: func() []flows.Record {
			return []flows.Record{{Type: flows.TypeAgent, Time: &now}, flow(end("shop", "web-0", "10.0.0.1"), end("shop", "db-0", "10.0.0.2"), 80, flows.Decision{Verdict: "allow"}, 1)}
		}})
		if err != nil {
			t.Fatal(err)
		}
		e.export(t.Context())
		if trusts {
			checkPoints(t, reg, 1, 0)
		} else {
			checkPoints(t, reg, 0, 1)
		}
	}
	if c.asked != 1 {
		t.Errorf("%d requests arrived, want that of the one that trusts", c.asked)
	}
}

func TestParseEndpoint(t *testing.T) {
	for _, tc := range []struct{ text, want, err string }{
		{"http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics", ""},
		{"https://collector.example/", "https://collector.example/v1/metrics", ""},
		{"https://[2001:db8::1]:4318/otlp/v1/metrics", "https://[2001:db8::1]:4318/otlp/v1/metrics", ""},
		{"127.0.0.1:4318", "", "first path segment"},
		{"collector:4318", "", "must begin with http:// or https://"},
		{"grpc://collector:4317", "", "must begin with http:// or https://"},
		{"http://", "", "no host"},
		{"http://:4318", "", "no host"},
		{"http://user:secret@collector:4318", "", "only"},
		{"http://collector:4318?x=y", "", "only"},
		{"http://collector:port", "", "invalid port"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			u, err := ParseEndpoint(tc.text)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%v, error %v, want %q", u, err, tc.err)
				}
				return
			}
			if err != nil || u.String() != tc.want {
				t.Errorf("%v, error %v, want %s", u, err, tc.want)
			}
		})
	}
}
