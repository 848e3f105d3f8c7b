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

// Where a cluster has its DNS. Every add-on keeps the label that kube-dns, the
// first of them, had. EndpointSlices have the labels of their Service.
const (
	namespace = metav1.NamespaceSystem
	selector  = "k8s-app=kube-dns"
)

// service is the cluster's DNS Service and the pods behind it, both as they are
// asked: some ways to a Service show its address to the node, some its pods'.
type service struct {
	factory  informers.SharedInformerFactory
	services corelisters.ServiceNamespaceLister
	slices   discoverylisters.EndpointSliceNamespaceLister
}

// newService returns a service that calls changed from any goroutine.
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

// follow has changed called at every change, and tells once if the objects
// cannot be read.
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
			logger.Info("The cluster's DNS Service cannot be read, will try again in silence", "kind", kind, "namespace", namespace, "selector", selector, "err", err)
		})
		logger.V(4).Info("List and watch start over", "kind", kind, "err", err)
	}))
}

// must is for calls that fail only for an informer that has started.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (s *service) start(ctx context.Context) { s.factory.StartWithContext(ctx) }

// wait returns when nothing runs any more, after the end of start's ctx.
func (s *service) wait() { s.factory.Shutdown() }

// resolvers returns what is known of the Service now, in no order.
func (s *service) resolvers() []netip.AddrPort {
	// Listers fail for selectors only that do not parse.
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

// isDNS tells a port where DNS is spoken from the one for metrics, and from those
// for DNS over TLS or HTTPS, which nobody can look into.
func isDNS(port corev1.ServicePort) bool {
	if port.Protocol != corev1.ProtocolUDP && port.Protocol != corev1.ProtocolTCP && port.Protocol != "" {
		return false
	}
	return port.Port == Port || port.Name == "dns" || port.Name == "dns-tcp"
}

// endpoints returns the pods of a slice at the port of that name. Those that are
// not ready may still have queries to answer.
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

// appendAll appends the addresses among addrs. A headless Service has "None", and
// a slice may have host names.
func appendAll(found []netip.AddrPort, addrs []string, port uint16) []netip.AddrPort {
	for _, s := range addrs {
		if addr, err := netip.ParseAddr(s); err == nil && reachable(addr) {
			found = append(found, netip.AddrPortFrom(addr.Unmap(), port))
		}
	}
	return found
}
