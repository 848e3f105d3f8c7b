// Package served finds the version in which an API server serves a kind, and fields that it lacks.
package served

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// OtherVersionsError means that a server serves a kind only in versions that are not
// supported.
type OtherVersionsError struct {
	Resource     schema.GroupResource
	Served, Read []string
}

func (e *OtherVersionsError) Error() string {
	return fmt.Sprintf("%s are served in version %s only, and read in %s: install a CustomResourceDefinition that serves one of these, or a release of this program that reads what is served",
		e.Resource, strings.Join(e.Served, ", "), strings.Join(e.Read, " or "))
}

// First returns the first of resources, the versions of one kind, that the server serves.
// found is false if it does not serve the kind. The error is an *OtherVersionsError if it
// serves only versions that are not in resources.
func First(ctx context.Context, client rest.Interface, resources []schema.GroupVersionResource) (r schema.GroupVersionResource, found bool, err error) {
	for _, r := range resources {
		if found, err := Has(ctx, client, r.GroupVersion(), r.Resource); found || err != nil {
			return r, found, err
		}
	}
	return schema.GroupVersionResource{}, false, otherVersions(ctx, client, resources)
}

// Has reports whether the server serves a resource, or a subresource "resource/name".
func Has(ctx context.Context, client rest.Interface, version schema.GroupVersion, resource string) (bool, error) {
	path := []string{"/apis", version.Group, version.Version}
	if version.Group == "" {
		path = []string{"/api", version.Version}
	}
	var list metav1.APIResourceList
	err := client.Get().AbsPath(path...).Do(ctx).Into(&list)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("discover the resources of %s: %w", version, err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource }), nil
}

// otherVersions returns an error if the server serves other versions of resources.
func otherVersions(ctx context.Context, client rest.Interface, resources []schema.GroupVersionResource) error {
	e := &OtherVersionsError{Resource: resources[0].GroupResource()}
	for _, r := range resources {
		e.Read = append(e.Read, r.Version)
	}
	var group metav1.APIGroup
	err := client.Get().AbsPath("/apis", e.Resource.Group).Do(ctx).Into(&group)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // the list of groups may be unreadable
		return nil
	case err != nil:
		return fmt.Errorf("discover the versions of %s: %w", e.Resource.Group, err)
	}
	for _, v := range group.Versions {
		if slices.Contains(e.Read, v.Version) {
			continue
		}
		has, err := Has(ctx, client, schema.GroupVersion{Group: e.Resource.Group, Version: v.Version}, e.Resource.Resource)
		if err != nil {
			return err
		}
		if has {
			e.Served = append(e.Served, v.Version)
		}
	}
	if e.Served == nil {
		return nil
	}
	return e
}
