package resolvers

import (
	"context"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
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
	factory  informers.SharedInformerFactory
	services corelisters.ServiceNamespaceLister
	slices   discoverylisters.EndpointSliceNamespaceLister
}

// newService returns a service that calls changed, possibly from several goroutines.
func newService(client kubernetes.Interface, changed func()) *service {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = selector }))
	s := &service{
		factory:  factory,
		services: factory.Core().V1().Services().Lister().Services(namespace),
		slices:   factory.Discovery().V1().EndpointSlices().Lister().EndpointSlices(namespace),
	}
	follow(factory.Core().V1().Services().Informer(), "Service", changed)
	follow(factory.Discovery().V1().EndpointSlices().Informer(), "EndpointSlice", changed)
	return s
}

// follow calls changed on every change, and logs the first error at the default verbosity.
func follow(i cache.SharedIndexInformer, kind string, changed func()) {
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
			logger.Info("Cannot read the cluster's DNS Service; retrying; further errors at -v=4", "kind", kind, "namespace", namespace, "selector", selector, "err", err)
		})
		logger.V(4).Info("List and watch restart", "kind", kind, "err", err)
	}))
}

// must panics on errors that only a started informer returns.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (s *service) start(ctx context.Context) { s.factory.StartWithContext(ctx) }

// wait waits for all goroutines, which end with the ctx of start.
func (s *service) wait() { s.factory.Shutdown() }

// resolvers returns the current addresses of the Service and its pods, in no order.
func (s *service) resolvers() []netip.AddrPort {
	// Listers fail only for invalid selectors.
	services, _ := s.services.List(labels.Everything())
	slices, _ := s.slices.List(labels.Everything())
	var found []netip.AddrPort
	for _, svc := range services {
		for _, port := range svc.Spec.Ports {
			if !isDNS(port) {
				continue
			}
			found = appendAll(found, svc.Spec.ClusterIPs, uint16(port.Port))
			for _, slice := range slices {
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
