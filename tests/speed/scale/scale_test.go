package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/speed/scale/apiserver"
)

// TestProbesMustAgree: there is a probe each millisecond since the change. "x" is one that
// does not pass.
func TestProbesMustAgree(t *testing.T) {
	pass, drop := strings.Repeat(".", agreeing), strings.Repeat("x", agreeing)
	changed := time.Unix(0, 0)
	for _, tt := range []struct {
		name   string
		probes string
		pass   bool
		want   int // number of the first probe that agrees, -1 if too few agree
	}{
		{"all pass", pass, true, 0},
		{"all pass, to be dropped", pass, false, -1},
		{"pass after drops", "xxx" + pass, true, 3},
		{"pass after both", "x.x" + pass, true, 3},
		{"dropped after passes", "..." + drop, false, 3},
		{"one too few", pass[1:], true, -1},
		{"the last one disagrees", pass + "x", true, -1},
		{"more than enough", drop + pass + pass, true, agreeing},
		{"none", "", true, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &prober{sent: []time.Time{changed}, passed: []bool{!tt.pass}}
			last := changed
			for _, probe := range tt.probes {
				last = last.Add(time.Millisecond)
				p.sent, p.passed = append(p.sent, last), append(p.passed, probe == '.')
			}
			p.sent, p.passed = append(p.sent, last.Add(time.Millisecond)), append(p.passed, !tt.pass) // too recent to count
			first, ok := p.agreed(tt.pass, changed, last)
			got := int(first.Sub(changed)/time.Millisecond) - 1
			if !ok {
				got = -1
			}

			if got != tt.want {
				t.Errorf("%q: probe %d, want %d", tt.probes, got, tt.want)
			}
		})
	}
}

func TestQuantiles(t *testing.T) {
	var l latencies
	for i := range 200 {
		l = append(l, time.Duration(200-i))
	}
	for percent, want := range map[int]time.Duration{0: 1, 50: 101, 99: 199, 100: 200} {
		t.Run(strconv.Itoa(percent), func(t *testing.T) {
			if got := l.quantile(percent); got != want {
				t.Errorf("quantile %d is %d, want %d", percent, got, want)
			}
		})
	}
}

// TestChurnKeepsClusterSize follows the pods of a cluster through the changes.
func TestChurnKeepsClusterSize(t *testing.T) {
	s := size{pods: 1000, namespaces: 10}
	c := newChurn(apiserver.New(), s)
	for range 20000 {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if len(c.deleted) > deletions {
			t.Fatalf("after %d changes %d pods are gone, want at most %d", c.done, len(c.deleted), deletions)
		}
	}
	replaced := 0
	for _, life := range c.lives {
		replaced += max(life, ^life)
	}

	if want := 20000 / cycle * additions; replaced < want*9/10 || replaced > want {
		t.Errorf("%d pods replaced others, want about %d", replaced, want)
	}
}

func TestPodsDiffer(t *testing.T) {
	s := size{pods: 100000, namespaces: 1000}
	names, addrs := map[string]int{}, map[string]int{}
	for i := range s.pods {
		p := s.pod(i, 0)
		names[p.Namespace+"/"+p.Name]++
		for _, ip := range p.Status.PodIPs {
			addrs[ip.IP]++
		}
		if own := p.Spec.NodeName == ownNode; own != (i < perNode) {
			t.Fatalf("pod %d is on %s", i, p.Spec.NodeName)
		}
	}
	if len(names) != s.pods || len(addrs) != 2*s.pods {
		t.Errorf("%d names and %d addresses of %d pods", len(names), len(addrs), s.pods)
	}
}

func TestIrrelevantFieldsDiffer(t *testing.T) {
	s := size{pods: 1000, namespaces: 10}
	p := s.pod(7, 0)
	q := heartbeat(relabelled(p, "release", "r1"), time.Unix(9, 0))
	if p.Status.Conditions[1].LastProbeTime == q.Status.Conditions[1].LastProbeTime || q.Labels["release"] != "r1" || p.Labels["release"] != "r0" {
		t.Errorf("%v and %v", p.Labels, q.Labels)
	}
	if other := s.pod(8, 0); other.Status.Conditions[1].LastProbeTime != p.Status.Conditions[1].LastProbeTime {
		t.Error("two pods have the same heartbeat")
	}
	if size := (&corev1.Pod{}).Size(); p.Size() < 2000+size {
		t.Errorf("a pod has %d bytes", p.Size())
	}
}
