package netns

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// TestABootExchangesAddresses: NP-60. After a boot, pods get each other's addresses while
// their statuses still have the old ones. From the first snapshot on, each pod has its own
// rights in both directions.
func TestABootExchangesAddresses(t *testing.T) {
	c := newCluster(t, 1, "x/web@1 app=web", "y/db@1 app=db", "y/web@1 app=web")
	for name, uid := range map[string]types.UID{"x/web": "1", "y/db": "2", "y/web": "3"} {
		c.Pods[name].Object.UID = uid
		c.Put(t, labtest.PodFile(name), c.Pods[name].Object)
	}
	db, web := c.Pods["y/db"], c.Pods["y/web"]
	cache := cniCache(t.TempDir())
	cache.announce(t, c.Pods["x/web"])
	// Pod db now runs at the host of y/web. The other pod has not returned yet.
	cache.announce(t, &lab.Pod{Host: web.Host, Object: db.Object})
	c.Apply(t, "ingress", onlyDB)
	c.Apply(t, "egress", webSendsToDB)
	sink, err := c.Hosts["x/web"].Sink(9999)
	if err != nil {
		t.Fatal(err)
	}
	agent := c.Start(t, "--pod-address-source", string(cache))[0]
	denied := c.sendWithoutEnd(t, db.Host, netip.AddrPortFrom(c.Hosts["x/web"].Addr(lab.IPv4), 9999))
	c.Expect(t,
		labtest.Yes("y/web", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "tcp/80"),
		labtest.Yes("x/web", "y/web", "udp/80"), labtest.No("x/web", "y/db", "udp/80"))

	cache.announce(t, &lab.Pod{Host: db.Host, Object: web.Object})
	exchanged := func() {
		t.Helper()
		c.Expect(t,
			labtest.Yes("y/web", "x/web", "tcp/80"), labtest.No("y/db", "x/web", "tcp/80"), labtest.Yes("y/db", "y/web", "tcp/80"),
			labtest.Yes("x/web", "y/web", "udp/80"), labtest.No("x/web", "y/db", "udp/80"))
	}
	exchanged()
	db.Object.Status.PodIPs, web.Object.Status.PodIPs = web.Object.Status.PodIPs, db.Object.Status.PodIPs
	for _, pod := range []*lab.Pod{db, web} { // the kubelet updates the statuses one after the other
		labtest.Enforced(t, agent, func() { c.Put(t, labtest.PodFile(pod.Name), pod.Object) })
		exchanged()
	}
	if sink.Received() > 0 || denied.Load() == 0 {
		t.Errorf("%d of %d denied packets passed", sink.Received(), denied.Load())
	}
}
