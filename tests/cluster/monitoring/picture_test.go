package monitoring

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"math"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/prometheus"
	"sigs.k8s.io/kube-network-policies/tests/cluster/monitoring/recording"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// picture is what make pictures draws.
const picture = "../../../docs/img/dashboard.svg"

// The picture in the documentation has all panels, by their titles.
func TestPictureHasAllPanels(t *testing.T) {
	content, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range readPanels(t) {
		var title bytes.Buffer
		if err := xml.EscapeText(&title, []byte(p.Title)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(content, []byte(">"+title.String()+"<")) {
			t.Errorf("%s lacks the panel %q: run make pictures", picture, p.Title)
		}
	}
}

// How long make pictures records, and how often.
const (
	recorded = 90 * time.Second
	step     = time.Second
)

// TestRecordDashboard records what the dashboard shows of two nodes in use into the file
// that DASHBOARD names, for make pictures.
func TestRecordDashboard(t *testing.T) {
	file := os.Getenv("DASHBOARD")
	if file == "" {
		t.Skip("no DASHBOARD: see make pictures")
	}
	c := start(t, 2)
	server := c.startPrometheus(t)
	wait(t, "three targets", func() bool { return len(server.Query(t, "count(up == 1) == 3")) > 0 })
	from := time.Now()
	c.use(t, recorded)
	to := from.Add(recorded)
	variables := strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*")
	var r recording.Recording
	for _, p := range readPanels(t) {
		panel := recording.Panel{Title: p.Title, Type: p.Type, Unit: p.FieldConfig.Defaults.Unit, Place: p.GridPos}
		for _, target := range p.Targets {
			for _, series := range server.QueryRange(t, variables.Replace(target.Expr), from, to, step) {
				panel.Lines = append(panel.Lines, line(target.LegendFormat, series, from))
			}
		}
		r.Panels = append(r.Panels, panel)
	}
	if err := r.Write(file); err != nil {
		t.Fatal(err)
	}
}

var label = regexp.MustCompile(`\{\{(\w+)\}\}`)

// line returns a series as Grafana would show it.
func line(legend string, series prometheus.Series, from time.Time) recording.Line {
	l := recording.Line{Legend: label.ReplaceAllStringFunc(legend, func(m string) string { return series.Metric[label.FindStringSubmatch(m)[1]] })}
	for _, point := range series.Values {
		if !math.IsNaN(point.Value) && !math.IsInf(point.Value, 0) {
			l.Points = append(l.Points, recording.Point{Seconds: point.Time - float64(from.UnixMilli())/1000, Value: point.Value})
		}
	}
	return l
}

// use makes connections and changes for a while: more and fewer of those that policies
// allow and deny, forged packets, and an agent that stands still for some seconds.
func (c *cluster) use(t *testing.T, duration time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	begin := time.Now()
	ended := make(chan struct{})
	actions := []func(){
		repeat(ctx, func() time.Duration { return wave(begin, 5*time.Millisecond, 40*time.Millisecond) }, func() { c.try(ctx, "x/client", "x/web", lab.TCP, 80) }),
		repeat(ctx, func() time.Duration { return wave(begin, 10*time.Millisecond, 50*time.Millisecond) }, func() { c.try(ctx, "y/client", "x/web", lab.TCP, 80) }),
		repeat(ctx, func() time.Duration { return 100 * time.Millisecond }, func() { c.try(ctx, "x/client", "y/web", lab.UDP, 81) }),
		repeat(ctx, func() time.Duration { return wave(begin, 20*time.Millisecond, 200*time.Millisecond) }, func() { c.try(ctx, "y/client", "x/web", lab.TCP, 81) }),
		repeat(ctx, func() time.Duration { return 500 * time.Millisecond }, func() {
			_ = c.Hosts["x/client"].SendIP(labtest.IPv4(netip.MustParseAddr("192.0.2.1"), c.Hosts["x/web"].Addr(lab.IPv4), labtest.ProtoUDP, 0, labtest.UDP(9, 9, nil)))
		}),
	}
	for _, action := range actions {
		go func() { action(); ended <- struct{}{} }()
	}
	c.disturb(ctx, t, begin, duration)
	for range actions {
		<-ended
	}
}

// disturb changes policies all the time, and stops the agent of the second node for a while.
func (c *cluster) disturb(ctx context.Context, t *testing.T, begin time.Time, duration time.Duration) {
	stopped := false
	for n := 0; ctx.Err() == nil; n++ {
		c.Replace(t, "changing", labtest.Policy("y", "changing", fmt.Sprintf("{podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: %d}, {port: 81, protocol: UDP}]}]}", 8000+n)))
		switch now := time.Since(begin); {
		case !stopped && now > duration/2:
			stopped = true
			_ = c.agents[1].Signal(syscall.SIGSTOP)
		case now > duration/2+4*time.Second:
			_ = c.agents[1].Signal(syscall.SIGCONT)
		}
		pause(ctx, time.Second)
	}
}

func (c *cluster) try(ctx context.Context, from, to string, proto lab.Proto, port uint16) {
	_, _ = c.Hosts[from].Probe(ctx, proto, netip.AddrPortFrom(c.Hosts[to].Addr(lab.IPv4), port), 50*time.Millisecond)
}

// repeat returns a loop that ends with ctx.
func repeat(ctx context.Context, interval func() time.Duration, action func()) func() {
	return func() {
		for ctx.Err() == nil {
			action()
			pause(ctx, interval())
		}
	}
}

// wave returns an interval between low and high, three waves in the time that is recorded.
func wave(begin time.Time, low, high time.Duration) time.Duration {
	phase := 6 * math.Pi * time.Since(begin).Seconds() / recorded.Seconds()
	return low + time.Duration(float64(high-low)*(1+math.Cos(phase))/2)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
