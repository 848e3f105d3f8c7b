package lab

import (
	"fmt"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

func TestMetricsAreSummedByLabels(t *testing.T) {
	const scrape = `# HELP packet_count Number of packets
# TYPE packet_count counter
packet_count{family="IPv4",protocol="TCP",verdict="accept"} 3
packet_count{family="IPv6",protocol="TCP",verdict="accept"} 4
packet_count{family="IPv4",protocol="UDP",verdict="drop"} 1e+06
go_goroutines 12
`
	metrics, err := parseMetrics(scrape)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want   float64
		name   string
		labels []string
	}{
		{7, "packet_count", []string{"verdict", "accept"}},
		{3, "packet_count", []string{"verdict", "accept", "family", "IPv4"}},
		{1e6, "packet_count", []string{"verdict", "drop"}},
		{12, "go_goroutines", nil},
		{0, "packet_count", []string{"verdict", "other"}},
		{0, "absent", nil},
	} {
		t.Run(fmt.Sprint(c.name, " ", c.labels), func(t *testing.T) {
			if got := metrics.Sum(c.name, c.labels...); got != c.want {
				t.Errorf("Sum(%s, %v) = %v, want %v", c.name, c.labels, got, c.want)
			}
		})
	}

	if !metrics.Has("go_goroutines") || metrics.Has("absent") {
		t.Error("Has is wrong")
	}
	if _, err := parseMetrics("a_counter twelve"); err == nil {
		t.Error("a value that is no number is accepted")
	}
}

func TestManifestsAreReplacedWhole(t *testing.T) {
	manifests, err := NewManifests(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	objects := []runtime.Object{NewNamespace("x", nil), NewPod("x", "a", "node-1", map[string]string{"app": "web"})}
	if err := manifests.Put("objects", objects...); err != nil {
		t.Fatal(err)
	}
	if err := manifests.Write("objects", "kind: Namespace\n"); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(manifests.Dir())
	if err != nil || len(files) != 1 || files[0].Name() != "objects.yaml" {
		t.Errorf("the folder holds %v, %v", files, err)
	}
	if err := manifests.Remove("objects"); err != nil {
		t.Error(err)
	}
}
