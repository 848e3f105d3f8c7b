package links

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// inNamespace moves the goroutine of a test to a new network namespace. Its thread ends with the
// goroutine.
func inNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_NEWNET)
	switch {
	case err == nil:
	case errors.Is(err, unix.EPERM) && os.Getenv("NETNS_REQUIRED") == "":
		t.Skip("needs to be root and allowed to make network namespaces")
	default:
		t.Fatal(err)
	}
}

// ip runs ip -batch in the thread's namespace.
func ip(t *testing.T, lines string) {
	t.Helper()
	if out, err := exec.Command("bash", "-c", "ip -batch - <<<'"+lines+"'").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

const network = `link set lo up
link add up0 type veth peer name up1
link set up0 up
link set up1 up
addr add 172.18.0.1/24 dev up0
route add default via 172.18.0.254 dev up0
link add pod0 type veth peer name pod1
link set pod0 up
link set pod1 up
route add 10.244.1.2/32 dev pod0
link add sgp0 type veth peer name sgp1
link add cni0 type bridge
link set cni0 up
addr add 10.244.1.1/24 dev cni0
link add br0 type bridge
link add port type veth peer name in-pod
link set port master cni0
route add 10.244.1.4/32 via 172.18.0.252
route add 203.0.113.0/24 nexthop via 172.18.0.253 nexthop dev pod1
rule add iif sgp0 lookup 101
route add fd00:10:244:1::2/128 dev pod0
route add 2001:db8::/32 via fe80::1 dev up1 proto ra`

func TestTheKernelsLinksAreRead(t *testing.T) {
	inNamespace(t)
	ip(t, network)
	links, err := new(rtnetlink).read()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]*Link{}
	for _, link := range links {
		got[link.Name] = link
	}
	for name, check := range map[string]func(*Link) bool{
		"lo":  func(l *Link) bool { return l.Kind == "" && !l.Gateway },
		"up0": func(l *Link) bool { return l.Kind == "veth" && l.Gateway && l.OnLink },
		"up1": func(l *Link) bool { return l.Kind == "veth" && !l.Gateway },
		"pod0": func(l *Link) bool {
			return !l.Gateway && slices.Contains(l.Hosts, pod4) && slices.Contains(l.Hosts, pod6)
		},
		"sgp0": func(l *Link) bool { return l.InRule && !l.OnLink },
		"cni0": func(l *Link) bool { return l.Kind == "bridge" && l.OnLink },
		"br0":  func(l *Link) bool { return l.Kind == "bridge" && !l.OnLink },
		"port": func(l *Link) bool { return l.Master == got["cni0"].Index },
	} {
		t.Run(name, func(t *testing.T) {
			if link := got[name]; link == nil || !check(link) {
				t.Errorf("got %+v", link)
			}
		})
	}
	if link := got["pod0"]; !slices.Contains(link.Direct, pod4) || !slices.Contains(link.Direct, pod6) {
		t.Errorf("the routes to pods without a gateway are %v", link.Direct)
	}
	if link := got["up0"]; len(link.Hosts) != 1 || len(link.Direct) != 0 {
		t.Errorf("a route through a gateway is among %v", link.Direct)
	}
	want := []string{"br0", "lo", "sgp0", "up0"}
	if got := links.uplinks(isLocal, nil); !slices.Equal(got, want) {
		t.Errorf("uplinks are %v, want %v", got, want)
	}
	if got := links.bridges([]netip.Addr{netip.MustParseAddr("10.244.1.7")}, want); !slices.Equal(got, []string{"cni0"}) {
		t.Errorf("bridges of pods are %v, want cni0", got)
	}
}

// A link that is added after the watcher has started is found.
func TestChangesAreFollowed(t *testing.T) {
	inNamespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 1)
	done := make(chan error, 1)
	namespace, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		done <- new(rtnetlink).watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	<-changed // the watcher has subscribed
	ip(t, "link add late type bridge")
	<-changed
	links, err := new(rtnetlink).read()
	if got := links.uplinks(func(netip.Addr) bool { return false }, nil); err != nil || !slices.Contains(got, "late") {
		t.Errorf("uplinks are %v, %v", got, err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("watch ended without an error")
	}
}

// Clients of the agent may have all file descriptors: interfaces of new pods do not need another one.
func TestReadsNeedNoFileDescriptor(t *testing.T) {
	inNamespace(t)
	var r rtnetlink
	if _, err := r.read(); err != nil {
		t.Fatal(err)
	}
	defer r.conn.Close()
	ip(t, "link add late type bridge")
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	links, err := r.read()
	if restored := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); restored != nil {
		t.Fatal(restored)
	}
	if !slices.ContainsFunc(slices.Collect(maps.Values(links)), func(l *Link) bool { return l.Name == "late" }) {
		t.Errorf("got %v, %v", links, err)
	}
}

// linkMessage returns the rtnetlink message of a tunnel device.
func linkMessage(t *testing.T, kind string, attribute, port uint16) []byte {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.IFLA_IFNAME, "tunnel")
	ae.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
		info.String(unix.IFLA_INFO_KIND, kind)
		info.Nested(unix.IFLA_INFO_DATA, func(data *netlink.AttributeEncoder) error {
			data.Uint32(99, 1)
			data.Bytes(attribute, []byte{byte(port >> 8), byte(port)})
			return nil
		})
		return nil
	})
	b, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	header := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(header[4:], 7) // the index
	return append(header, b...)
}

func TestPortsOfTunnelsAreRead(t *testing.T) {
	for _, tt := range []struct {
		kind      string
		attribute uint16
		want      []uint16
	}{
		{"vxlan", unix.IFLA_VXLAN_PORT, []uint16{8472}},
		{"geneve", unix.IFLA_GENEVE_PORT, []uint16{8472}},
		{"bareudp", unix.IFLA_BAREUDP_PORT, []uint16{8472}},
		{"vxlan", unix.IFLA_VXLAN_ID, nil},
		{"veth", unix.IFLA_VXLAN_PORT, nil},
	} {
		t.Run(tt.kind+" "+strconv.Itoa(int(tt.attribute)), func(t *testing.T) {
			links := Links{}
			if err := links.addLink(linkMessage(t, tt.kind, tt.attribute, 8472)); err != nil {
				t.Fatal(err)
			}
			if got := links.tunnelPorts(); !slices.Equal(got, tt.want) || links[7].Kind != tt.kind {
				t.Errorf("%s: got ports %v of %+v, want %v", tt.kind, got, links[7], tt.want)
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(make([]byte, 16))
	f.Add(append(make([]byte, 12), 12, 0, 9, 0, 8, 0, 0, 0, 1, 0, 0, 0))
	f.Fuzz(func(t *testing.T, data []byte) {
		links := Links{}
		_ = links.addLink(data) // must not panic
		_ = links.addRoute(data)
		_ = links.addRule(data)
	})
}
