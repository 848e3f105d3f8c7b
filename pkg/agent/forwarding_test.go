package agent

import (
	"maps"
	"net/netip"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/steer"
)

// forwarder is the pod of a namespace at an address that may forward from a prefix.
func forwarder(namespace, addr, source string) policy.Forwarder {
	return policy.Forwarder{
		Pod:     &policy.Endpoint{Namespace: namespace, Name: "pod-" + addr},
		Addrs:   []netip.Addr{netip.MustParseAddr(addr)},
		Sources: []netip.Prefix{netip.MustParsePrefix(source)},
	}
}

// TestForwards: pods with the same list share its sets. Pods at a bridge, or with a list
// beyond the bound, may not forward and are counted.
func TestForwards(t *testing.T) {
	links := map[string]string{"10.0.0.1": "v1", "10.0.0.2": "v2", "10.0.0.3": "v3", "10.0.0.4": "v4", "10.0.0.5": "v5", "10.0.0.6": "v6", "10.0.0.7": "v7"}
	all := []policy.Forwarder{
		forwarder("a", "10.0.0.1", "10.8.0.0/24"),
		forwarder("b", "10.0.0.2", "10.9.0.0/24"),
		forwarder("a", "10.0.0.8", "10.8.0.0/24"), // at a bridge
		forwarder("c", "10.0.0.3", "10.8.0.0/24"),
		forwarder("d", "10.0.0.4", "10.10.0.0/24"),
		forwarder("e", "10.0.0.5", "10.11.0.0/24"),
		forwarder("f", "10.0.0.6", "10.12.0.0/24"), // one list too many
		forwarder("b", "10.0.0.7", "10.9.0.0/24"),
	}
	allowed, refused := forwards(all, func(pod []netip.Addr) string { return links[pod[0].String()] })
	want := []steer.Forward{
		{Links: []string{"v1", "v3"}, Sources: all[0].Sources},
		{Links: []string{"v2", "v7"}, Sources: all[1].Sources},
		{Links: []string{"v4"}, Sources: all[4].Sources},
		{Links: []string{"v5"}, Sources: all[5].Sources},
	}
	if !reflect.DeepEqual(allowed, want) {
		t.Errorf("got %v, want %v", allowed, want)
	}
	if want := map[string]string{"a/pod-10.0.0.8": sharedLink, "f/pod-10.0.0.6": tooManyLists}; !maps.Equal(refused, want) {
		t.Errorf("refused are %v, want %v", refused, want)
	}

	logger, _ := ktesting.NewTestContext(t)
	reg := prometheus.NewRegistry()
	f := newForwarding(reg, logger)
	f.report(len(all)-len(refused), refused)
	allowedPods, refusedPods := testutil.ToFloat64(f.pods.WithLabelValues("allowed")), testutil.ToFloat64(f.pods.WithLabelValues("refused"))
	if allowedPods != 6 || refusedPods != 2 {
		t.Errorf("%v pods are counted as allowed and %v as refused", allowedPods, refusedPods)
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
