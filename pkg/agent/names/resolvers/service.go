package resolvers

import (
	"context"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Labels of the cluster's DNS Service. All DNS add-ons use that of kube-dns, which was the
// first. EndpointSlices have the labels of their Service.
const (
	namespace = metav1.NamespaceSystem
	selector  = "k8s-app=kube-dns"
)

// service is the cluster's DNS Service and the pods behind it. It returns the addresses of
// both: the implementation of Services decides which one a packet has when the agent sees it.
type service struct {
	services, slices cache.SharedIndexInformer
	running          sync.WaitGroup
}

// newService returns a service that calls changed, possibly from several goroutines.
func newService(cluster Cluster, changed func()) *service {
	return &service{
		services: follow(cluster, corev1.SchemeGroupVersion.WithResource("services"), &corev1.Service{}, changed),
		slices:   follow(cluster, discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), &discoveryv1.EndpointSlice{}, changed),
	}
}

// follow returns an informer that calls changed on every change, and logs the first error at the
// default verbosity.
func follow(cluster Cluster, r schema.GroupVersionResource, object runtime.Object, changed func()) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(cluster.Selected(r, namespace, metav1.ListOptions{LabelSelector: selector}), object, 0, nil)
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	must(err)
	var once sync.Once
	must(i.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		logger := klog.FromContext(ctx)
		once.Do(func() {
			logger.Info("Cannot read the cluster's DNS Service; retrying; further errors at -v=4", "resource", r.Resource, "namespace", namespace, "selector", selector, "err", err)
		})
		logger.V(4).Info("List and watch restart", "resource", r.Resource, "err", err)
	}))
	return i
}

// must panics on errors that only a started informer returns.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (s *service) start(ctx context.Context) {
	s.running.Go(func() { s.services.RunWithContext(ctx) })
	s.running.Go(func() { s.slices.RunWithContext(ctx) })
}

// wait waits for all goroutines, which end with the ctx of start.
func (s *service) wait() { s.running.Wait() }

// resolvers returns the current addresses of the Service and its pods, in no order.
func (s *service) resolvers() []netip.AddrPort {
	var found []netip.AddrPort
	for _, o := range s.services.GetStore().List() {
		svc := o.(*corev1.Service)
		for _, port := range svc.Spec.Ports {
			if !isDNS(port) {
				continue
			}
			found = appendAll(found, svc.Spec.ClusterIPs, uint16(port.Port))
			for _, o := range s.slices.GetStore().List() {
				slice := o.(*discoveryv1.EndpointSlice)
				if slice.Labels[discoveryv1.LabelServiceName] == svc.Name {
					found = append(found, endpoints(slice, port.Name)...)
				}
			}
		}
	}
	return found
}

// isDNS reports whether a port serves plain DNS. Metrics do not matter, and DNS over TLS or
// HTTPS cannot be read.
func isDNS(port corev1.ServicePort) bool {
	if port.Protocol != corev1.ProtocolUDP && port.Protocol != corev1.ProtocolTCP && port.Protocol != "" {
		return false
	}
	return port.Port == Port || port.Name == "dns" || port.Name == "dns-tcp"
}

// endpoints returns the pods of a slice at the port with this name. Pods that are not ready
// are included: they may still answer earlier queries.
func endpoints(slice *discoveryv1.EndpointSlice, name string) []netip.AddrPort {
	var found []netip.AddrPort
	for _, port := range slice.Ports {
		if port.Port == nil || port.Name == nil || *port.Name != name {
			continue
		}
		for _, e := range slice.Endpoints {
			found = appendAll(found, e.Addresses, uint16(*port.Port))
		}
	}
	return found
}

// appendAll appends the elements of addrs that are IP addresses: a headless Service has
// "None", and a slice may have host names.
func appendAll(found []netip.AddrPort, addrs []string, port uint16) []netip.AddrPort {
	for _, s := range addrs {
		if addr, err := netip.ParseAddr(s); err == nil && reachable(addr) {
			found = append(found, netip.AddrPortFrom(addr.Unmap(), port))
		}
	}
	return found
}
