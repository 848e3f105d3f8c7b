package clusterwatch

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// versions lists and watches a kind in the first of its versions that the server serves. Each
// list selects the version, and the watch uses the same one. Resource versions are shared by
// all API versions, and a list replaces the objects in one step, so no object is lost during
// a change of version.
//
// It serves one Reflector, which never lists and watches at once.
type versions struct {
	kind    *compile.Kind
	inner   []cache.ListerWatcherWithContext // by version, in the order of Resources
	current int                              // version of the last successful list
	// find discovers whether the server serves the kind, and in which version. It returns an
	// error if the server serves other versions only.
	find func(context.Context) (schema.GroupVersionResource, bool, error)
}

// list returns NotFound if the server does not serve the kind in any version. If another
// version is served, the policies still exist, so list returns a different error.
func (v *versions) list(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
	for i, inner := range v.inner {
		list, err = inner.ListWithContext(ctx, o)
		if err == nil {
			v.use(ctx, i)
		}
		if !apierrors.IsNotFound(err) {
			return list, err
		}
	}
	if o.Limit == 1 { // a frequent probe for any object
		return nil, err
	}
	r, found, undiscovered := v.find(ctx)
	switch {
	case found:
		return nil, fmt.Errorf("version %s of %s is served, and cannot be listed yet: %v", r.Version, v.kind.Name, err)
	case undiscovered != nil && !apierrors.IsForbidden(undiscovered):
		return nil, undiscovered
	}
	return nil, err
}

// watch expires when the server starts to serve a better version than that of the last list.
func (v *versions) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	for _, better := range v.inner[:v.current] {
		if _, err := better.ListWithContext(ctx, metav1.ListOptions{Limit: 1}); err == nil {
			return nil, apierrors.NewResourceExpired("a better version of " + v.kind.Name + " is served")
		}
	}
	return v.inner[v.current].WatchWithContext(ctx, o)
}

func (v *versions) use(ctx context.Context, i int) {
	if i != v.current {
		v.current = i
		klog.FromContext(ctx).Info("Kind is read in another version", "kind", v.kind.Name, "version", v.kind.Resources()[i].Version)
	}
}
