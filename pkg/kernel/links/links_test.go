package links

import (
	"net/netip"
	"slices"
	"testing"
)

var pod4, pod6 = netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:10:244:1::2")

func isLocal(a netip.Addr) bool { return a == pod4 || a == pod6 }

func TestPodsThatNoLinkLeadsTo(t *testing.T) {
	network := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	for name, tt := range map[string]struct {
		link Link
		want bool
	}{
		"a route to a pod":              {Link{Kind: "veth", Hosts: []netip.Addr{pod4}}, true},
		"a bridge":                      {Link{Kind: "bridge", Networks: network}, true},
		"Open vSwitch":                  {Link{Kind: "openvswitch", Networks: network}, true},
		"a pair without a route":        {Link{Kind: "veth"}, false},
		"macvlan on the node's network": {Link{Networks: network}, false},
		"macvlan with one for the node": {Link{Kind: "macvlan", Networks: network}, false},
		"ipvlan on a VLAN":              {Link{Kind: "vlan", Networks: network}, false},
		"a bridge of another network":   {Link{Kind: "bridge", Networks: []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (Links{1: &tt.link}).leadsToAny([]netip.Addr{pod4, pod6}); got != tt.want {
				t.Errorf("leads to a pod: %v, want %v", got, tt.want)
			}
		})
	}
}

func TestUplinks(t *testing.T) {
	host := []netip.Addr{netip.MustParseAddr("10.244.1.99")}
	for _, tt := range []struct {
		name  string
		links []Link
		want  []string
	}{
		{"hardware, and what is made of it", []Link{{Name: "eth0"}, {Name: "bond0", Kind: "bond"}, {Name: "eth0.5", Kind: "vlan", OnLink: true}}, []string{"bond0", "eth0", "eth0.5"}},
		{"tunnels", []Link{{Name: "flannel.1", Kind: "vxlan", Gateway: true}, {Name: "tunl0", Kind: "ipip"}, {Name: "wg0", Kind: "wireguard"}}, []string{"flannel.1", "tunl0", "wg0"}},
		{"a pod that is known", []Link{{Name: "cali1", Kind: "veth", Hosts: []netip.Addr{pod4}, OnLink: true}}, nil},
		{"a pod that is not known", []Link{{Name: "cali1", Kind: "veth", Hosts: host, OnLink: true}}, nil},
		{"a pod without a route yet", []Link{{Name: "cali1", Kind: "veth"}, {Name: "nk0", Kind: "netkit"}}, nil},
		{"the uplink of a node in a container", []Link{{Name: "eth0", Kind: "veth", Gateway: true, OnLink: true}}, []string{"eth0"}},
		{"a pod that is a gateway, too", []Link{{Name: "cali1", Kind: "veth", Gateway: true, Direct: []netip.Addr{pod6}}}, nil},
		{"an uplink with a route to a pod that is gone", []Link{{Name: "eth0", Kind: "veth", Gateway: true, Hosts: []netip.Addr{pod4}}}, []string{"eth0"}},
		{"hardware that leads to a pod", []Link{{Name: "eth1r0", Direct: []netip.Addr{pod4}}}, nil},
		{"a link that rules are about", []Link{{Name: "vlan1", Kind: "veth", InRule: true, Hosts: []netip.Addr{pod4}}}, []string{"vlan1"}},
		{"a bridge of pods", []Link{{Index: 2, Name: "cni0", Kind: "bridge", OnLink: true}, {Name: "v1", Kind: "veth", Master: 2}}, nil},
		{"a bridge without a network", []Link{{Name: "br0", Kind: "bridge"}}, []string{"br0"}},
		{"a bridge with hardware", []Link{{Index: 2, Name: "br0", Kind: "bridge", OnLink: true}, {Name: "eth0", Master: 2}, {Name: "v1", Kind: "veth", Master: 2}}, []string{"br0", "eth0"}},
		{"a bridge that is the uplink", []Link{{Name: "br0", Kind: "bridge", OnLink: true, Gateway: true}}, []string{"br0"}},
		{"what the operator exempts", []Link{{Name: "net1", Kind: "veth"}, {Name: "net22", Kind: "veth"}, {Name: "cali1", Kind: "veth"}}, []string{"net1", "net22"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			links := Links{}
			for i, link := range tt.links {
				if link.Index == 0 {
					link.Index = 100 + i
				}
				links[link.Index] = &link
			}
			if got := links.uplinks(isLocal, []string{"net*", "net1"}); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestBridges(t *testing.T) {
	pods := []netip.Addr{pod4, pod6}
	cni0 := Link{Name: "cni0", Kind: "bridge", OnLink: true, Networks: []netip.Prefix{netip.PrefixFrom(pod4, 24).Masked()}}
	other := Link{Name: "virbr0", Kind: "bridge", OnLink: true, Networks: []netip.Prefix{netip.MustParsePrefix("192.168.122.0/24")}}
	for _, tt := range []struct {
		name    string
		links   []Link
		uplinks []string
		want    []string
	}{
		{"of pods, and others", []Link{other, cni0}, nil, []string{"cni0"}},
		{"with a route to a pod", []Link{{Name: "br1", Kind: "bridge", Hosts: []netip.Addr{pod6}}, other}, nil, []string{"br1"}},
		{"an uplink", []Link{cni0}, []string{"cni0"}, nil},
		{"no bridge", []Link{{Name: "pod1", Kind: "veth", Hosts: pods}}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			links := Links{}
			for i, link := range tt.links {
				links[i] = &link
			}
			if got := links.bridges(pods, tt.uplinks); !slices.Equal(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestOtherPorts(t *testing.T) {
	links := Links{
		1: {Name: "cni0", Kind: "bridge"},
		2: {Name: "virbr0", Kind: "bridge"},
		3: {Name: "bond0", Kind: "bond"},
		4: {Name: "pod1", Kind: "veth", Master: 1},
		5: {Name: "vnet1", Kind: "tun", Master: 2},
		6: {Name: "eth1", Master: 2},
		7: {Name: "eth0", Master: 3},
		8: {Name: "new", Kind: "veth", Master: 9}, // port of a bridge that is not read yet
	}
	for _, tt := range []struct{ bridges, want []string }{
		{[]string{"cni0"}, []string{"eth1", "vnet1"}},
		{[]string{"cni0", "virbr0"}, nil},
		{nil, []string{"eth1", "pod1", "vnet1"}},
	} {
		if got := links.otherPorts(tt.bridges); !slices.Equal(got, tt.want) {
			t.Errorf("other ports than those of %v are %v, want %v", tt.bridges, got, tt.want)
		}
	}
}

// Only the packets on one end of a pair with a route to a single pod are known to be from that pod.
func TestOwnLink(t *testing.T) {
	other := netip.MustParseAddr("10.244.1.3")
	pod, pods := []netip.Addr{pod4, pod6}, []netip.Addr{pod4, other, pod6}
	pair := Link{Name: "cali1", Kind: "veth", Hosts: pod, Direct: pod}
	changed := func(change func(*Link)) Link {
		l := pair
		change(&l)
		return l
	}
	for _, tt := range []struct {
		name  string
		links []Link
		want  string
	}{
		{"a pair", []Link{pair, {Name: "cali2", Kind: "veth", Hosts: []netip.Addr{other}, Direct: []netip.Addr{other}}}, "cali1"},
		{"netkit", []Link{changed(func(l *Link) { l.Kind = "netkit" })}, "cali1"},
		{"one address", []Link{changed(func(l *Link) { l.Direct = pod[:1] })}, "cali1"},
		{"networks behind the pod", []Link{changed(func(l *Link) { l.Gateway = true; l.Networks = []netip.Prefix{netip.MustParsePrefix("10.8.0.0/24")} })}, "cali1"},
		{"a bridge", []Link{{Name: "cni0", Kind: "bridge", OnLink: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}}, ""},
		{"a bridge with routes", []Link{changed(func(l *Link) { l.Kind = "bridge" })}, ""},
		{"a port of a bridge", []Link{changed(func(l *Link) { l.Master = 2 })}, ""},
		{"hardware", []Link{changed(func(l *Link) { l.Kind = "" })}, ""},
		{"a link with another pod", []Link{changed(func(l *Link) { l.Hosts = pods })}, ""},
		{"a link with the network of another pod", []Link{changed(func(l *Link) { l.Networks = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")} })}, ""},
		{"two links", []Link{pair, changed(func(l *Link) { l.Name = "cali2" })}, ""},
		{"a gateway or an advertised route", []Link{changed(func(l *Link) { l.Direct = nil })}, ""},
		{"no link", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			links := Links{}
			for i, link := range tt.links {
				links[i] = &link
			}
			if got := links.ownLink(pod, pods); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// The links that lead to pod4 or pod6, among links to other pods.
func TestLeads(t *testing.T) {
	network := []netip.Prefix{netip.PrefixFrom(pod4, 24).Masked()}
	pair := Link{Name: "cali1", Kind: "veth", Hosts: []netip.Addr{pod6, pod4}}
	direct := Link{Name: "cali1", Kind: "veth", Hosts: pair.Hosts, Direct: pair.Hosts}
	cni0 := Link{Name: "cni0", Kind: "bridge", Networks: network}
	for _, tt := range []struct {
		name    string
		links   []Link
		uplinks []string
		want    []Lead
	}{
		{"a pair, and one of another pod", []Link{{Name: "cali2", Kind: "veth", Hosts: []netip.Addr{netip.MustParseAddr("10.244.1.9")}}, pair}, nil,
			[]Lead{{100, "cali2", true, nil}, {101, "cali1", true, []netip.Addr{pod4, pod6}}}},
		{"a bridge", []Link{cni0}, nil, []Lead{{100, "cni0", false, []netip.Addr{pod4}}}},
		{"a bridge, and a pod that is not at it", []Link{cni0, pair}, nil, []Lead{{101, "cali1", true, []netip.Addr{pod4, pod6}}}},
		{"two links", []Link{pair, {Name: "net1", Kind: "veth", Hosts: []netip.Addr{pod4, pod4}}}, nil,
			[]Lead{{100, "cali1", true, []netip.Addr{pod4, pod6}}, {101, "net1", true, []netip.Addr{pod4}}}},
		{"a pair, and another pod that advertises or should forward its address", []Link{direct, {Name: "cali2", Kind: "veth", Hosts: []netip.Addr{pod4}}}, nil,
			[]Lead{{100, "cali1", true, []netip.Addr{pod4, pod6}}, {101, "cali2", true, nil}}},
		{"an uplink", []Link{{Name: "eth0", Networks: network}, pair}, []string{"eth0", "cali1"}, nil},
		{"an uplink with a route to the pod, and a bridge", []Link{{Name: "eth0", Hosts: []netip.Addr{pod4}}, cni0}, []string{"eth0"},
			[]Lead{{101, "cni0", false, []netip.Addr{pod4}}}},
		{"no link", nil, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			links := Links{}
			for i, link := range tt.links {
				links[100+i] = &link
			}
			got := links.leads([]netip.Addr{pod4, pod6}, tt.uplinks)
			if !slices.EqualFunc(got, tt.want, func(a, b Lead) bool {
				return a.Index == b.Index && a.Name == b.Name && a.Pair == b.Pair && slices.Equal(a.Pods, b.Pods)
			}) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// What the node sends through the interface of a pod, beyond the pod's addresses, and what it sends
// elsewhere of that.
func TestDestinations(t *testing.T) {
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	links := Links{
		3: {Hosts: []netip.Addr{pod4, pod6, addr("192.0.2.7")}, Gatewayed: []netip.Prefix{prefix("10.8.0.0/16"), prefix("2001:db8:8::/48")}},
		4: {Hosts: []netip.Addr{addr("10.8.1.1"), addr("192.0.2.8")}, Networks: []netip.Prefix{prefix("10.8.2.0/24"), prefix("10.0.0.0/8")}},
		5: {Hosts: []netip.Addr{addr("192.0.2.7")}},
	}
	want := []Destination{
		{prefix("10.8.1.1/32"), 4}, {prefix("10.8.2.0/24"), 4}, {prefix("10.8.0.0/16"), 3},
	}
	got := links.destinations([]uint32{3}, []netip.Addr{pod4, pod6})
	four := slices.DeleteFunc(slices.Clone(got), func(d Destination) bool { return !d.To.Addr().Is4() || d.To.Addr() == addr("192.0.2.7") })
	if !slices.Equal(four, want) {
		t.Errorf("got %v, want %v", four, want)
	}
	for _, d := range []Destination{{prefix("192.0.2.7/32"), 3}, {prefix("192.0.2.7/32"), 5}, {prefix("2001:db8:8::/48"), 3}} {
		if !slices.Contains(got, d) {
			t.Errorf("%v is missing in %v", d, got)
		}
	}
	if len(got) != 6 {
		t.Errorf("got %v", got)
	}
	links[3].Gatewayed = append(links[3].Gatewayed, prefix("0.0.0.0/0"))
	if got, all := links.destinations([]uint32{3}, []netip.Addr{pod4, pod6}), 9; len(got) != all || got[all-1] != (Destination{prefix("0.0.0.0/0"), 3}) {
		t.Errorf("got %v, want the default route and all others of IPv4", got)
	}
	if got := links.destinations(nil, nil); len(got) != 0 {
		t.Errorf("without interfaces: %v", got)
	}
}

// Where routes show that no pod of this node has pod4 or pod6, and where it may have one.
func TestLeadsElsewhere(t *testing.T) {
	network, pool := []netip.Prefix{netip.PrefixFrom(pod4, 24).Masked(), netip.PrefixFrom(pod6, 64).Masked()},
		[]netip.Prefix{netip.PrefixFrom(pod4, 16).Masked(), netip.PrefixFrom(pod6, 48).Masked()}
	all, both := []netip.Prefix{defaultRoutes[false], defaultRoutes[true]}, []netip.Addr{pod4, pod6}
	uplink := Link{Name: "eth0", Gateway: true, Gatewayed: all}
	with := func(l Link) []Link { return []Link{uplink, l} }
	for _, tt := range []struct {
		name  string
		links []Link
		want  bool
	}{
		{"nothing is read", nil, false},
		{"no route", []Link{{Name: "eth0"}}, false},
		{"the default route", []Link{uplink}, true},
		{"the default route of a node in a container", []Link{{Name: "eth0", Kind: "veth", Gateway: true, Gatewayed: all}}, true},
		{"a gateway to the addresses", with(Link{Kind: "veth", Hosts: both}), true},
		{"a gateway to the network, by a tunnel", with(Link{Kind: "vxlan", Gatewayed: network}), true},
		{"a gateway to the network, beyond a bridge of the wider one", with(Link{Kind: "bridge", Gatewayed: network, Networks: pool}), true},
		{"the network of the node", with(Link{Networks: network}), true},
		{"WireGuard", with(Link{Kind: "wireguard", Networks: network}), true},
		{"its own pair", with(Link{Kind: "veth", Hosts: both, Direct: both}), false},
		{"its own pair, and a gateway", append(with(Link{Kind: "veth", Hosts: both, Direct: both}), Link{Hosts: both}), false},
		{"hardware that leads to the pod", with(Link{Hosts: both, Direct: both}), false},
		{"a bridge", with(Link{Kind: "bridge", Networks: network}), false},
		{"a bridge with hardware, whose network is the node's", []Link{{Index: 2, Kind: "bridge", Networks: network}, {Master: 2, Gatewayed: pool}}, false},
		{"Open vSwitch", with(Link{Kind: "openvswitch", Networks: network}), false},
		{"a bridge and equally a gateway", with(Link{Kind: "bridge", Networks: network, Gatewayed: network}), false},
		{"equal routes, one to a bridge", append(with(Link{Kind: "bridge", Networks: network}), Link{Networks: network}), false},
		{"behind another pod", with(Link{Kind: "veth", Gatewayed: network, Direct: []netip.Addr{pod4.Next(), pod6.Next()}}), false},
		{"another pod is the default route", []Link{{Kind: "veth", Gatewayed: all, Direct: []netip.Addr{pod4.Next(), pod6.Next()}}}, false},
	} {
		links := Links{}
		for i, link := range tt.links {
			if link.Index == 0 {
				link.Index = 100 + i
			}
			links[link.Index] = &link
		}
		for _, pod := range both {
			if got := links.leadsElsewhere(pod); got != tt.want {
				t.Errorf("%s: %v leads elsewhere: %v, want %v", tt.name, pod, got, tt.want)
			}
		}
	}
}

func TestCheckPattern(t *testing.T) {
	for pattern, valid := range map[string]bool{"eth0": true, "net*": true, "": false, "net[": false} {
		t.Run(pattern, func(t *testing.T) {
			_, err := New(Config{Exempt: []string{pattern}})
			if (err == nil) != valid {
				t.Errorf("%q: %v", pattern, err)
			}
		})
	}
}
