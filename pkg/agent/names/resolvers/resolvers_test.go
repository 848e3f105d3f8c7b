package resolvers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient/apiclienttest"
)

func show(resolvers []netip.AddrPort) string {
	var all []string
	for _, r := range resolvers {
		all = append(all, r.String())
	}
	return strings.Join(all, " ")
}

// dnsService returns a Service of CoreDNS as in its manifests.
func dnsService(name string, ports []corev1.ServicePort, clusterIPs ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"k8s-app": "kube-dns"}},
		Spec:       corev1.ServiceSpec{ClusterIPs: clusterIPs, Ports: ports},
	}
}

// servicePort parses "NAME PROTOCOL/PORT".
func servicePort(s string) corev1.ServicePort {
	var p corev1.ServicePort
	name, rest, _ := strings.Cut(s, " ")
	protocol, port, _ := strings.Cut(rest, "/")
	p.Name, p.Protocol = name, corev1.Protocol(protocol)
	fmt.Sscan(port, &p.Port)
	return p
}

var corePorts = []corev1.ServicePort{servicePort("dns UDP/53"), servicePort("dns-tcp TCP/53"), servicePort("metrics TCP/9153")}

// dnsSlice returns an EndpointSlice of a Service, with the given port for DNS and
// 9153 for metrics.
func dnsSlice(service, name string, port int32, pods ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "kube-system", Name: name,
		Labels: map[string]string{"k8s-app": "kube-dns", discoveryv1.LabelServiceName: service},
	}}
	metrics := int32(9153)
	for _, name := range []string{"dns", "dns-tcp"} {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &port})
	}
	name = "metrics"
	s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &metrics}, discoveryv1.EndpointPort{})
	for _, pod := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{pod}})
	}
	return s
}

// clientset is a Cluster by a fake of client-go.
type clientset struct{ kubernetes.Interface }

func (c clientset) Selected(r schema.GroupVersionResource, namespace string, selecting metav1.ListOptions) cache.ListerWatcher {
	if r.Resource == "services" {
		api := c.CoreV1().Services(namespace)
		return apiclienttest.ListWatch(api, selecting)
	}
	api := c.DiscoveryV1().EndpointSlices(namespace)
	return apiclienttest.ListWatch(api, selecting)
}

// finding is a Finder that runs in a synctest bubble.
type finding struct {
	t       *testing.T
	conf    string
	metrics *metrics
	stop    func()

	mu        sync.Mutex
	published []string
}

// start runs a Finder with 192.0.2.53 in its resolv.conf.
func start(t *testing.T, ctx context.Context, client kubernetes.Interface, only ...netip.AddrPort) *finding {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver 192.0.2.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return startAt(t, ctx, conf, client, only...)
}

// startAt runs a Finder with this resolv.conf.
func startAt(t *testing.T, ctx context.Context, conf string, client kubernetes.Interface, only ...netip.AddrPort) *finding {
	t.Helper()
	f := &finding{t: t, conf: conf}
	cfg := Config{Only: only, ResolvConf: f.conf, Registerer: prometheus.NewRegistry()}
	if client != nil {
		cfg.Cluster = clientset{client}
	}
	finder, err := New(cfg,
		func(r []netip.AddrPort) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.published = append(f.published, show(r))
		})
	if err != nil {
		t.Fatal(err)
	}
	f.metrics = finder.metrics
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- finder.Run(ctx) }()
	f.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	return f
}

func (f *finding) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.conf, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// all returns the published lists, in order.
func (f *finding) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.published)
}

// expect waits as long as changes may take, and fails unless the last list is want.
func (f *finding) expect(want string) {
	f.t.Helper()
	time.Sleep(maxInterval + time.Second)
	synctest.Wait()
	if all := f.all(); len(all) == 0 || all[len(all)-1] != want {
		f.t.Errorf("published %q, want %q as the last list", all, want)
		return
	}
	if got := testutil.ToFloat64(f.metrics.resolvers); got != float64(len(strings.Fields(want))) {
		f.t.Errorf("the metric is %v, want the number of resolvers in %q", got, want)
	}
}

func TestResolversOfServiceAndNode(t *testing.T) {
	coreDNS := []runtime.Object{
		dnsService("kube-dns", corePorts, "10.96.0.10", "fd00::a"),
		dnsSlice("kube-dns", "kube-dns-4", 53, "10.244.1.5", "10.244.2.5"),
		dnsSlice("kube-dns", "kube-dns-6", 53, "fd00:10:244::5"),
	}
	for _, tc := range []struct {
		name    string
		objects []runtime.Object
		want    string
	}{
		{"no Service", nil, "192.0.2.53:53"},
		{"CoreDNS", coreDNS, "10.96.0.10:53 10.244.1.5:53 10.244.2.5:53 192.0.2.53:53 [fd00::a]:53 [fd00:10:244::5]:53"},
		{"pods at another port", []runtime.Object{
			dnsService("kube-dns", corePorts, "10.96.0.10"), dnsSlice("kube-dns", "s", 5353, "10.244.1.5"),
		}, "10.96.0.10:53 10.244.1.5:5353 192.0.2.53:53"},
		{"a headless Service", []runtime.Object{
			dnsService("kube-dns", corePorts, "None"), dnsSlice("kube-dns", "s", 53, "10.244.1.5"),
		}, "10.244.1.5:53 192.0.2.53:53"},
		{"the node's nameserver is the Service", []runtime.Object{dnsService("kube-dns", corePorts, "192.0.2.53")}, "192.0.2.53:53"},
		{"two Services", []runtime.Object{
			dnsService("kube-dns", corePorts, "10.96.0.10"), dnsService("upstream", corePorts, "10.96.0.11"),
			dnsSlice("upstream", "s", 53, "10.244.1.5"),
		}, "10.96.0.10:53 10.96.0.11:53 10.244.1.5:53 192.0.2.53:53"},
		{"other names of ports", []runtime.Object{
			dnsService("kube-dns", []corev1.ServicePort{servicePort("udp-53 UDP/53"), servicePort("dns-tcp TCP/5300"), servicePort("http TCP/8080"), servicePort("dns-tls TCP/853"), servicePort("dns-sctp SCTP/53")}, "10.96.0.10"),
		}, "10.96.0.10:53 10.96.0.10:5300 192.0.2.53:53"},
		{"a slice of another Service", []runtime.Object{
			dnsService("kube-dns", corePorts, "10.96.0.10"), dnsSlice("other", "s", 53, "10.244.1.5"),
		}, "10.96.0.10:53 192.0.2.53:53"},
		{"invalid addresses", []runtime.Object{
			dnsService("kube-dns", corePorts, "10.96.0.10", "127.0.0.1", ""), dnsSlice("kube-dns", "s", 53, "dns.test", "::1"),
		}, "10.96.0.10:53 192.0.2.53:53"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				f := start(t, ctx, fake.NewClientset(tc.objects...))
				defer f.stop()
				f.expect(tc.want)
			})
		})
	}
}

// TestRequestsAreLimitedToDNS checks the requests to the API server.
func TestRequestsAreLimitedToDNS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		client := fake.NewClientset()
		f := start(t, ctx, client)
		defer f.stop()
		f.expect("192.0.2.53:53")
		seen := make(map[string]bool)
		for _, action := range client.Actions() {
			seen[action.GetVerb()+" "+action.GetResource().Resource] = true
			if action.GetNamespace() != "kube-system" {
				t.Errorf("%s %s in namespace %q", action.GetVerb(), action.GetResource().Resource, action.GetNamespace())
			}
			var selector string
			switch a := action.(type) {
			case clienttesting.ListAction:
				selector = a.GetListRestrictions().Labels.String()
			case clienttesting.WatchAction:
				selector = a.GetWatchRestrictions().Labels.String()
			}
			if selector != "k8s-app=kube-dns" {
				t.Errorf("%s %s of %q", action.GetVerb(), action.GetResource().Resource, selector)
			}
		}
		for _, want := range []string{"list services", "watch services", "list endpointslices", "watch endpointslices"} {
			if !seen[want] {
				t.Errorf("no %s", want)
			}
		}
	})
}

func TestChangesArePublishedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		client := fake.NewClientset(dnsService("kube-dns", corePorts, "10.96.0.10"))
		f := start(t, ctx, client)
		defer f.stop()
		f.expect("10.96.0.10:53 192.0.2.53:53")
		endpoints := client.DiscoveryV1().EndpointSlices("kube-system")
		services := client.CoreV1().Services("kube-system")
		before := len(f.all())

		if _, err := endpoints.Create(ctx, dnsSlice("kube-dns", "s", 53, "10.244.1.5"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.expect("10.96.0.10:53 10.244.1.5:53 192.0.2.53:53")
		moved := dnsSlice("kube-dns", "s", 53, "10.244.2.6")
		if _, err := endpoints.Update(ctx, moved, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		f.expect("10.96.0.10:53 10.244.2.6:53 192.0.2.53:53")
		f.write("nameserver 192.0.2.54\n")
		f.expect("10.96.0.10:53 10.244.2.6:53 192.0.2.54:53")
		if err := services.Delete(ctx, "kube-dns", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.expect("192.0.2.54:53")
		if got := len(f.all()) - before; got != 4 {
			t.Errorf("four changes were published %d times: %q", got, f.all())
		}
		f.expect("192.0.2.54:53")
		if got := len(f.all()) - before; got != 4 {
			t.Errorf("published without a change: %q", f.all())
		}
	})
}

// TestUnreadableServiceDelaysNothing has an API server that refuses requests.
func TestUnreadableServiceDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
		ctx := klog.NewContext(t.Context(), logger)
		client := fake.NewClientset()
		var granted atomic.Bool
		client.PrependReactor("list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if granted.Load() {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: a.GetResource().Resource}, "", errors.New("no right"))
		})
		f := start(t, ctx, client)
		defer f.stop()
		synctest.Wait()
		if got, want := f.all(), []string{"192.0.2.53:53"}; !slices.Equal(got, want) {
			t.Errorf("published %q at once, want %q", got, want)
		}
		for range 20 {
			f.expect("192.0.2.53:53")
		}
		logged := 0
		for _, line := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
			if strings.Contains(line.Message, "Cannot read") {
				logged++
			}
		}
		if logged != 2 {
			t.Errorf("logged %d times, want once for each kind", logged)
		}

		granted.Store(true)
		if _, err := client.CoreV1().Services("kube-system").Create(ctx, dnsService("kube-dns", corePorts, "10.96.0.10"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // the longest retry interval of informers
		f.expect("10.96.0.10:53 192.0.2.53:53")
	})
}

func TestUnreadableResolvConfChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, klog.NewContext(t.Context(), klog.Background()), nil)
		defer f.stop()
		f.expect("192.0.2.53:53")
		if err := os.Remove(f.conf); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(f.conf, 0o700); err != nil { // reading it fails
			t.Fatal(err)
		}
		f.expect("192.0.2.53:53")
		if err := os.Remove(f.conf); err != nil {
			t.Fatal(err)
		}
		f.expect("")
		f.write("nameserver 192.0.2.54\n")
		f.expect("192.0.2.54:53")
	})
}

// TestAStartWithoutAResolvConf: then the node teaches no names, whatever is in the file's place, and those
// of the cluster count.
func TestAStartWithoutAResolvConf(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"missing":      func(string) error { return nil },
		"unreadable":   func(path string) error { return os.Mkdir(path, 0o700) },
		"empty":        func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"half written": func(path string) error { return os.WriteFile(path, []byte("nameserver"), 0o600) },
		"other syntax": func(path string) error { return os.WriteFile(path, []byte("{dns: [192.0.2.53]}\x00"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, ctx := ktesting.NewTestContext(t)
				conf := filepath.Join(t.TempDir(), "resolv.conf")
				if err := make(conf); err != nil {
					t.Fatal(err)
				}
				f := startAt(t, ctx, conf, fake.NewClientset(dnsService("kube-dns", corePorts, "10.96.0.10")))
				defer f.stop()
				f.expect("10.96.0.10:53")
				if err := os.RemoveAll(conf); err != nil {
					t.Fatal(err)
				}
				f.write("nameserver 192.0.2.54\n")
				f.expect("10.96.0.10:53 192.0.2.54:53")
			})
		})
	}
}

func TestConfiguredResolversReplaceAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, ctx := ktesting.NewTestContext(t)
		client := fake.NewClientset(dnsService("kube-dns", corePorts, "10.96.0.10"))
		configured := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.9:5353"), netip.MustParseAddrPort("169.254.20.10:53"), netip.MustParseAddrPort("169.254.20.10:53")}
		f := start(t, ctx, client, configured...)
		defer f.stop()
		f.expect("169.254.20.10:53 192.0.2.9:5353")
		if n := len(client.Actions()); n != 0 {
			t.Errorf("%d requests to the API server", n)
		}
	})
}

func TestConfigValidate(t *testing.T) {
	if _, err := New(Config{}, nil); err == nil || !strings.Contains(err.Error(), "ResolvConf") || !strings.Contains(err.Error(), "Registerer") {
		t.Errorf("an empty Config: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg)
	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
