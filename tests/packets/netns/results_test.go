package netns

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// result writes a result of libcni with the time at which it was written. Its interfaces of the node are
// links.
func (c cniCache) result(t *testing.T, container string, pod *corev1.Pod, addrs []netip.Addr, written time.Time, links ...string) {
	t.Helper()
	var ips, interfaces []string
	for _, addr := range addrs {
		ips = append(ips, fmt.Sprintf(`{"address":"%v/24"}`, addr))
	}
	for _, link := range links {
		interfaces = append(interfaces, fmt.Sprintf(`{"name":%q}`, link))
	}
	interfaces = append(interfaces, `{"name":"eth0","sandbox":"/var/run/netns/1"}`)
	content := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"lab",`+
		`"cniArgs":[["IgnoreUnknown","1"],["K8S_POD_NAMESPACE",%q],["K8S_POD_NAME",%q],["K8S_POD_UID",%q]],`+
		`"result":{"cniVersion":"1.0.0","ips":[%s],"interfaces":[%s]}}`,
		container, pod.Namespace, strings.TrimPrefix(pod.Name, pod.Namespace+"/"), pod.UID, strings.Join(ips, ","), strings.Join(interfaces, ","))
	path := filepath.Join(string(c), "lab-"+container+"-eth0")
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path+".new", written, written); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// linkTo returns the interface of a node that leads to an address.
func linkTo(t *testing.T, node *lab.Node, addr netip.Addr) string {
	t.Helper()
	route, err := node.Run(t.Context(), "", "ip", "-o", "route", "get", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	_, dev, _ := strings.Cut(route, " dev ")
	name, _, _ := strings.Cut(dev, " ")
	return name
}

// TestResultsOfAnEarlierBoot: NP-60. Results of an earlier boot, when two pods had each other's addresses,
// have the later times. The isolated pod stays isolated, and the other one keeps its rights.
func TestResultsOfAnEarlierBoot(t *testing.T) {
	gone := func(string) []string { return []string{"veth-gone"} }
	own := func(link string) []string { return []string{link} }
	none := func(string) []string { return nil }
	for _, tc := range []struct {
		name     string
		old, now func(link string) []string // the interfaces that results name
		statuses bool                       // are written
		doubt    string
	}{
		{"their interfaces are gone", gone, own, false, "interface"},
		{"their interfaces are gone, and the others name none", gone, none, false, "interface"},
		{"pods have the interfaces again", own, own, false, "interface"},
		{"they name no interface, and the others do", none, own, false, "order"},
		{"none names an interface, and statuses are written", none, none, true, "order"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
			node, cache := c.Nodes[0], cniCache(t.TempDir())
			web, db := c.Pods["x/web"], c.Pods["y/db"]
			for name, pod := range c.Pods {
				pod.Object.UID = types.UID(strings.ReplaceAll(name, "/", "-"))
				object := pod.Object.DeepCopy()
				if !tc.statuses {
					object.Status.PodIP, object.Status.PodIPs = "", nil
				}
				c.Put(t, labtest.PodFile(name), object)
				link := linkTo(t, node, pod.Addr(lab.IPv4))
				cache.result(t, "now-"+string(pod.Object.UID), pod.Object, pod.Addrs, time.Now().Add(-time.Hour), tc.now(link)...)
			}
			later := time.Now().Add(time.Hour)
			cache.result(t, "old-web", web.Object, db.Addrs, later, tc.old(linkTo(t, node, web.Addr(lab.IPv4)))...)
			cache.result(t, "old-db", db.Object, web.Addrs, later, tc.old(linkTo(t, node, db.Addr(lab.IPv4)))...)
			c.Apply(t, "ingress", onlyDB)
			c.Apply(t, "egress", webSendsToDB)
			args := []string{"--pod-address-source", string(cache)}
			agent := c.Start(t, args...)[0]
			for range 2 {
				c.Expect(t,
					labtest.No("y/web", "x/web", "tcp/80"), labtest.Yes("y/db", "x/web", "tcp/80"), labtest.Yes("y/web", "y/db", "tcp/80"),
					labtest.No("x/web", "y/web", "udp/80"), labtest.Yes("x/web", "y/db", "udp/80"), labtest.Yes("y/db", "y/web", "udp/80"))
				if got := labtest.Metrics(t, agent).Sum("netpol_cni_cache_doubts", "reason", tc.doubt); got != 2 {
					t.Errorf("%v doubts by %s, want 2", got, tc.doubt)
				}
				if n := strings.Count(agent.Log(), "CNI results were written in the future"); n != 1 {
					t.Errorf("%d lines name results of the future", n)
				}
				if err := agent.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
				agent = c.Start(t, args...)[0]
			}
		})
	}
}
