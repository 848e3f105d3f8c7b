package status

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"
)

// runKind writes for one kind until ctx ends, while the server serves it. The
// CustomResourceDefinition of a kind may be installed late, removed, and installed
// again.
func (w *Writer) runKind(ctx context.Context, k Kind, spaces *namespaces) {
	logger := klog.FromContext(ctx)
	logged := false
	for {
		served, err := serves(ctx, w.cfg.Client.Discovery(), k.Resource.GroupVersion(), k.Resource.Resource)
		if served {
			logged = false
		}
		if served || err != nil { // without discovery, the list finds out
			w.newKindWriter(k, spaces).run(ctx)
		}
		if ctx.Err() == nil && !logged {
			logger.Info("Kind not served, waiting for it", "kind", k.Name, "resource", k.Resource.GroupResource().String(), "version", k.Resource.Version)
			logged = true
		}
		select {
		case <-time.After(rediscover):
		case <-ctx.Done():
			return
		}
	}
}

// serves reports whether the server serves a resource, or a subresource
// "resource/name", according to discovery.
func serves(ctx context.Context, d discovery.DiscoveryInterface, gv schema.GroupVersion, resource string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	served, err := discovery.ToDiscoveryInterfaceWithContext(d).ServerResourcesForGroupVersionWithContext(ctx, gv.String())
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("discover %s: %w", gv, err)
	}
	return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }), nil
}
