package reachability

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// Evaluating one representative gives the same result as evaluating every pair and port.
func TestReachIsWhatEveryPairSays(t *testing.T) {
	counts := map[bool]int{}
	forClusters(t, 300, func(t *testing.T, _ gen, in clusterstate.Input) {
		c := New(in)
		sides := allSides(t, c)
		for _, family := range []Family{FirstCommon, IPv6} {
			r := c.Reach(sides, family)
			for i := range sides {
				for j := range sides {
					set := r.Between(i, j)
					for _, span := range PortRanges(c) {
						got, want := set.Has(span.Proto, span.First), c.Evaluate(&sides[i], &sides[j], span.Port(), family).Allowed
						counts[got]++
						if got != want || got != set.Has(span.Proto, span.Last) {
							t.Errorf("%s -> %s %v: got %v, want %v", sides[i].Name, sides[j].Name, span, set, want)
						}
					}
				}
			}
		}
	})
	if counts[true] < 1000 || counts[false] < 1000 {
		t.Errorf("only %v", counts)
	}
}

// A pod and itself with twin have the same result as the pod and a copy of it with the same
// labels and ports at another address.
func TestTwins(t *testing.T) {
	forClusters(t, 100, func(t *testing.T, _ gen, in clusterstate.Input) {
		for _, p := range slices.Clone(in.Pods) {
			if p.Spec.HostNetwork || len(p.Status.PodIPs) == 0 {
				continue
			}
			twin := p.DeepCopy()
			twin.Name = p.Name + "-twin"
			for i := range twin.Status.PodIPs {
				twin.Status.PodIPs[i].IP += "0" // .20 for .2: not in the pod's own blocks
			}
			counts := in
			counts.Pods = append(slices.Clone(in.Pods), twin)
			c := New(counts)
			sides := sidesOf(t, c, []string{p.Namespace + "/" + p.Name, twin.Namespace + "/" + twin.Name})
			r := c.Reach(sides, FirstCommon)
			if r.places[0].class != r.places[1].class {
				continue // a block contains only one of them
			}
			if got, want := r.sets.all[r.between(0, 0, true)], r.Between(0, 1); got.String() != want.String() {
				t.Errorf("%s: got %v, want %v", p.Name, got, want)
			}
		}
	})
}

func ports(t *testing.T, specs ...string) PortSet {
	t.Helper()
	var ranges []PortRange
	for _, s := range specs {
		var r PortRange
		var proto string
		if n, _ := fmt.Sscanf(s, "%d-%d/%s", &r.First, &r.Last, &proto); n != 3 {
			if n, err := fmt.Sscanf(s, "%d/%s", &r.First, &proto); n != 2 {
				t.Fatal(s, err)
			}
			r.Last = r.First
		}
		r.Proto = map[string]packet.Proto{"TCP": packet.TCP, "UDP": packet.UDP, "SCTP": packet.SCTP, "ICMP": packet.ICMP}[proto]
		ranges = append(ranges, r)
	}
	return NewPortSet(ranges...)
}

func TestPortSetsInWords(t *testing.T) {
	for _, tc := range []struct {
		set  PortSet
		want string
	}{
		{PortSet{}, ""},
		{AllPorts(), "all"},
		{ports(t, "443/TCP", "53/UDP", "80/TCP"), "80,443/TCP 53/UDP"},
		{ports(t, "80/TCP", "81-90/TCP", "85-95/TCP"), "80-95/TCP"},
		{ports(t, "1-65535/TCP"), "TCP"},
		{ports(t, "1-65535/TCP", "0/ICMP"), "TCP other"},
		{AllPorts().Without(ports(t, "22/TCP")), "all but 22/TCP"},
		{AllPorts().Without(ports(t, "1/TCP", "65535/UDP")), "all but 1/TCP 65535/UDP"},
		{AllPorts().Without(ports(t, "0/ICMP")), "TCP UDP SCTP"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			if got := tc.set.String(); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPortSetsAreSets(t *testing.T) {
	a, b := ports(t, "1-100/TCP", "53/UDP", "0/ICMP"), ports(t, "50-200/TCP", "53-54/UDP")
	for name, tc := range map[string]struct {
		set  PortSet
		want string
	}{
		"union":        {a.Union(b), "1-200/TCP 53-54/UDP other"},
		"intersection": {a.Intersect(b), "50-100/TCP 53/UDP"},
		"difference":   {a.Without(b), "1-49/TCP other"},
		"nothing":      {a.Without(a), ""},
		"everything":   {a.Union(AllPorts()), "all"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.set.String(); got != tc.want {
				t.Errorf("%s: got %q, want %q", name, got, tc.want)
			}
		})
	}
	for number := range 202 {
		if got := a.Union(b).Has(packet.TCP, uint16(number)); got != (number >= 1 && number <= 200) {
			t.Error(strconv.Itoa(number), got)
		}
	}
}
