package cniresults

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// containerd is a file as libcni writes it for containerd.
func containerd(uid, container, ifName, ips string) string {
	return fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%[1]q,"config":"eyJjbmlWZXJzaW9uIjoiMC4zLjEifQ==","ifName":%[2]q,`+
		`"networkName":"kindnet","netns":"/var/run/netns/cni-1","cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","x"],`+
		`["K8S_POD_NAME","web"],["K8S_POD_INFRA_CONTAINER_ID",%[1]q],["K8S_POD_UID",%[3]q]],"capabilityArgs":{"dns":{}},`+
		`"result":{"cniVersion":"0.3.1","dns":{},"interfaces":[{"mac":"8a:2c:be:13:29:4e","name":"veth1"},{"name":"eth0","sandbox":"/var/run/netns/cni-1"}],`+
		`"ips":[%[4]s],"routes":[{"dst":"0.0.0.0/0"}]}}`, container, ifName, uid, ips)
}

func ip(addr string) string {
	return fmt.Sprintf(`{"address":%q,"gateway":"10.244.1.1","interface":1,"version":"4"}`, addr)
}

func TestParse(t *testing.T) {
	const good = "10.244.1.5/24"
	pod := func(result string) string {
		return `{"ifName":"eth0","containerId":"c","cniArgs":[["K8S_POD_NAMESPACE","x"],["K8S_POD_NAME","web"],["K8S_POD_UID","u"]],"result":` + result + `}`
	}
	for _, tc := range []struct {
		name, content string
		want          string // the addresses, "other", or a part of the error
	}{
		{"containerd", containerd("u", "c", "eth0", ip(good)), "10.244.1.5"},
		{"two families", containerd("u", "c", "eth0", ip(good)+","+ip("fd00::5/64")), "10.244.1.5 fd00::5"},
		{"the same twice", containerd("u", "c", "eth0", ip(good)+","+ip(good)), "10.244.1.5"},
		{"mapped", containerd("u", "c", "eth0", ip("::ffff:10.244.1.5/120")), "10.244.1.5"},
		{"result of version 0.2", pod(`{"cniVersion":"0.2.0","ip4":{"ip":"10.244.1.5/24","gateway":"10.244.1.1"},"ip6":{"ip":"fd00::5/64"}}`), "10.244.1.5 fd00::5"},
		{"the loopback interface", containerd("u", "c", "lo", ip("127.0.0.1/8")), "other"},
		{"another network of the pod", containerd("u", "c", "net1", ip("192.0.2.1/24")), "other"},
		{"no addresses that could be a pod's", containerd("u", "c", "eth0", ip("127.0.0.1/8")+","+ip("fe80::1/64")+","+ip("0.0.0.0/0")+","+ip("224.0.0.1/4")), "other"},
		{"no addresses", pod(`{}`), "other"},
		{"no result", pod(`null`), "other"},
		{"no pod", `{"ifName":"eth0","containerId":"c","result":{"ips":[{"address":"10.0.0.1/24"}]}}`, "other"},
		{"no UID", strings.Replace(containerd("u", "c", "eth0", ip(good)), "K8S_POD_UID", "OTHER", 1), "other"},
		{"a bare result, as old versions of libcni write it", `{"cniVersion":"0.3.1","ips":[{"address":"10.0.0.1/24"}]}`, "other"},
		{"empty", "", "unexpected end"},
		{"half written", containerd("u", "c", "eth0", ip(good))[:200], "unexpected end"},
		{"not JSON", "\x00\x01", "invalid character"},
		{"not an object", "[]", "cannot unmarshal"},
		{"an address without length", containerd("u", "c", "eth0", ip("10.244.1.5")), "10.244.1.5"},
		{"no address", containerd("u", "c", "eth0", ip("elsewhere/24")), "elsewhere"},
		{"arguments of another form", `{"cniArgs":"K8S_POD_NAME=web"}`, "cannot unmarshal"},
		{"too many addresses", containerd("u", "c", "eth0", strings.Repeat(ip(good)+",", 16)+ip(good)), "17 addresses"},
		{"too many interfaces", pod(`{"ips":[{"address":"10.0.0.1/24"}],"interfaces":[` + strings.TrimSuffix(interfaces(17), ",") + `]}`), "17 interfaces"},
		{"the name of no interface", pod(`{"ips":[{"address":"10.0.0.1/24"}],"interfaces":[{"name":"longer-than-name"}]}`), "16 characters"},
		{"a name that is too long", containerd(strings.Repeat("u", 254), "c", "eth0", ip(good)), "254 characters"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := parse([]byte(tc.content))
			got := "other"
			switch {
			case err == nil:
				got = strings.Trim(fmt.Sprint(r.addrs), "[]")
			case !errors.Is(err, errOther):
				got = err.Error()
			}
			if err == nil && got != tc.want || err != nil && !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	r, err := parse([]byte(containerd("u", "c", "eth0", ip(good))))
	want := record{namespace: "x", name: "web", uid: "u", container: "c", addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}, links: []string{"veth1"}}
	if diff := cmp.Diff(want, r, cmp.AllowUnexported(record{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
}

func interfaces(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `{"name":"veth%d"},`, i)
	}
	return text.String()
}

// TestInterfacesOfTheNode: those of the pod do not count, with or without a sandbox.
func TestInterfacesOfTheNode(t *testing.T) {
	for interfaces, want := range map[string]string{
		`{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/1"}`:                 "[veth1]",
		`{"name":"veth1"},{"name":"cni0"},{"name":"eth0","sandbox":"/run/netns/1"}`: "[cni0 veth1]",
		`{"name":"eth0"}`:                            "[]",
		`{"name":"eth0","sandbox":"/run/netns/1"}`:   "[]",
		`{"name":"dummy1","sandbox":"0"},{"mac":""}`: "[]",
		``: "[]",
	} {
		r, err := parse([]byte(`{"ifName":"eth0","containerId":"c","cniArgs":[["K8S_POD_NAMESPACE","x"],["K8S_POD_NAME","web"],["K8S_POD_UID","u"]],` +
			`"result":{"ips":[{"address":"10.0.0.1/24"}],"interfaces":[` + interfaces + `]}}`))
		if got := fmt.Sprint(r.links); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", interfaces, got, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(containerd("u", "c", "eth0", ip("10.244.1.5/24")+","+ip("fd00::5/64"))))
	f.Add([]byte(`{"ifName":"eth0","result":{"ip4":{"ip":"10.0.0.1/8"}}}`))
	f.Add([]byte(`{"cniArgs":[[]],"result":null}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		r, err := parse(content)
		if err != nil {
			return
		}
		if r.namespace == "" || r.name == "" || r.uid == "" || max(len(r.namespace), len(r.name), len(r.uid), len(r.container)) > maxName {
			t.Errorf("names %q %q %q %q", r.namespace, r.name, r.uid, r.container)
		}
		if len(r.addrs) == 0 || len(r.addrs) > maxAddrs {
			t.Errorf("%d addresses", len(r.addrs))
		}
		for _, a := range r.addrs {
			if !a.IsGlobalUnicast() || a.Is4In6() {
				t.Errorf("address %v", a)
			}
		}
	})
}
