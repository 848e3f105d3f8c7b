package reachability

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// A Difference by names has the changes of the pods: each of a pod is one of its group, and
// each of a group is one of a pod in it.
func TestChangesByNameAreThoseOfPods(t *testing.T) {
	forClusters(t, 300, func(t *testing.T, g gen, in clusterstate.Input) {
		before, after := New(in), New(g.changed(in))
		name := func(p *corev1.Pod) string { return p.Namespace + "/all" }
		addresses := append(NodeAddresses(before, after), ExternalAddresses(Translated{}, before, after)...)
		spans := PortRanges(before, after)
		pods, err := Compare(Names{}, before, after, spans, addresses, FirstCommon)
		if err != nil {
			t.Fatal(err)
		}
		named, err := Compare(Names{Pod: name}, before, after, spans, addresses, FirstCommon)
		if err != nil {
			t.Fatal(err)
		}
		short := func(s string) string {
			base, _, _ := strings.Cut(s, " (")
			if p := before.pods[base]; p != nil {
				return name(p)
			}
			if p := after.pods[base]; p != nil {
				return name(p)
			}
			return base
		}
		cells := func(d *Difference) map[string]bool {
			found := map[string]bool{}
			for _, c := range d.Changes {
				for _, traffic := range c.Traffic {
					for _, cell := range c.Cells() {
						found[traffic.String()+short(cell.From)+short(cell.To)] = true
					}
				}
			}
			return found
		}
		ofPods, ofNames := cells(&pods), cells(&named)
		for cell := range ofPods {
			if !ofNames[cell] {
				t.Errorf("only of pods: %s", cell)
			}
		}
		for cell := range ofNames {
			if !ofPods[cell] && !strings.Contains(cell, "/all") {
				t.Errorf("only by name: %s", cell)
			}
		}
	})
}

// The ranges of addresses are disjoint, and their members are treated like the address that
// stands for them.
func TestExternalRangesAreThoseOfTheirAddress(t *testing.T) {
	forClusters(t, 100, func(t *testing.T, _ gen, in clusterstate.Input) {
		c := New(in)
		names := ExternalRanges(Translated{}, c)
		if len(names) != len(ExternalAddresses(Translated{}, c)) {
			t.Fatalf("got %v for %v", names, ExternalAddresses(Translated{}, c))
		}
		blocks := blocksOf([]*Cluster{c})
		for address, name := range names {
			want := smallest(netip.MustParseAddr(address), blocks)
			for part := range strings.SplitSeq(name, " and ") {
				first, last, ok := strings.Cut(part, "-")
				if !ok && strings.Contains(part, "/") {
					first = netip.MustParsePrefix(part).Addr().String()
				}
				if strings.HasSuffix(part, " more") {
					continue
				}
				for _, text := range slices.DeleteFunc([]string{first, last}, func(s string) bool { return s == "" }) {
					if got := smallest(netip.MustParseAddr(text), blocks); got != want {
						t.Errorf("%s of %q is not like %s", text, name, address)
					}
				}
			}
		}
	})
}

func TestRangesName(t *testing.T) {
	for want, ranges := range map[string][]string{
		"0.0.0.0/0":  {"0.0.0.0-255.255.255.255"},
		"::/0":       {"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		"10.0.0.0/8": {"10.0.0.0-10.255.255.255"},
		"0.0.0.0-9.255.255.255 and 11.0.0.0-255.255.255.255": {"0.0.0.0-9.255.255.255", "11.0.0.0-255.255.255.255"},
		"10.0.0.1/32 and 10.0.0.3/32 and 1 more":             {"10.0.0.1-10.0.0.1", "10.0.0.3-10.0.0.3", "10.0.0.5-10.0.0.5"},
	} {
		var all []netipx.IPRange
		for _, r := range ranges {
			all = append(all, netipx.MustParseIPRange(r))
		}
		if got := rangesName(all); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A cluster with new pods has one in each namespace, and one in a namespace that may come.
func TestWithNewPods(t *testing.T) {
	in := clusterstate.Input{Pods: []*corev1.Pod{
		podAt("x", "a", "10.0.0.1"), podAt("y", "b", "10.0.0.2"),
	}}
	c := New(WithNewPods(in))
	var got []string
	for _, e := range c.Pods(FirstCommon) {
		got = append(got, e.Name)
	}
	if want := []string{"new namespace/new pod", "x/a", "x/new pod", "y/b", "y/new pod"}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	if got := c.Outside(FirstCommon, Translated{}); len(got.Members) != 1 || got.Members[0].Name != "0.0.0.0/0" {
		t.Errorf("got %+v", got)
	}
	if got := New(WithNewPods(in, NewNamespace)).Pods(FirstCommon); len(got) != 3 {
		t.Errorf("got %v", got)
	}
	if len(compile.Addresses(in.Pods[0])) != 1 || len(in.Pods) != 2 {
		t.Error("the input was changed")
	}
}

// No packet comes from a range of Services or goes there, once policies see it.
func TestServiceRangesAreNotOutside(t *testing.T) {
	c := New(clusterstate.Input{Pods: []*corev1.Pod{podAt("x", "a", "10.0.0.1")}})
	translated := NewTranslated(nil, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")})

	outside := c.Outside(FirstCommon, translated)

	if want := "0.0.0.0-10.95.255.255 and 10.112.0.0-255.255.255.255"; len(outside.Members) != 1 || outside.Members[0].Name != want {
		t.Errorf("got %+v, want %s", outside.Members, want)
	}
	all := NewTranslated(nil, []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")})
	if got := c.Outside(FirstCommon, all); len(got.Members) != 0 {
		t.Errorf("outside of everything is %+v", got.Members)
	}
}

func podAt(namespace, name, ip string) *corev1.Pod {
	p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}}}
	p.Namespace, p.Name = namespace, name
	return p
}
