package status

import (
	"context"
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// FieldManager is the field manager of every writer, so that a new leader owns the fields of
// the previous one.
const FieldManager = "kube-network-policies-status"

// The names of sinks in flags and metrics.
const (
	SubresourceSink = "subresource"
	AnnotationSink  = "annotation"
)

// ErrNotServed is wrapped by a Sink's errors if the server cannot store conditions in this
// way for any object.
var ErrNotServed = errors.New("not served")

// Sink is a way to store conditions on objects of one kind. Its methods never create an
// object or change fields of others, and may be called from several goroutines. They must not
// modify their arguments.
type Sink interface {
	// Name returns a constant, for logs and metrics.
	Name() string
	// Read returns our conditions on o, nil if there are none or they are malformed.
	Read(o *unstructured.Unstructured) []metav1.Condition
	// Stores reports whether o has what Write would store for conditions, ignoring transition
	// times.
	Stores(o *unstructured.Unstructured, conditions []metav1.Condition) bool
	// Marked reports whether o has any conditions of ours, even malformed ones. It may miss
	// some if o lacks its managed fields.
	Marked(o *unstructured.Unstructured) bool
	// Probe checks with the server whether Write would work for o, and changes nothing. An
	// error that wraps ErrNotServed means no; after other errors the answer is unknown.
	Probe(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error
	// Write stores conditions on o, or the part that the sink keeps, if the server still has this
	// version of o. If o has changed the error is a conflict, if it was deleted a conflict or
	// NotFound.
	Write(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error
	// Clear removes our conditions, whatever version of o the server has.
	Clear(ctx context.Context, o *unstructured.Unstructured) error
}

// result classifies the outcome of a request, for metrics and for retries.
type result string

const (
	success   result = "success"
	conflict  result = "conflict"  // changed or deleted in the meantime
	gone      result = "gone"      // deleted
	unserved  result = "unserved"  // the server does not have this sink
	forbidden result = "forbidden" // the writer has no right to use this sink
	refused   result = "refused"   // an admission plugin refused this object
	invalid   result = "invalid"   // the object or the patch is invalid
	// serverError is an answer of 5xx; a retry may help.
	serverError result = "server_error"
	failed      result = "error" // any other error, such as no answer; a retry may help
)

var results = []result{success, conflict, gone, unserved, forbidden, refused, invalid, serverError, failed}

func resultOf(err error) result {
	switch {
	case err == nil:
		return success
	case errors.Is(err, ErrNotServed), isNoResource(err):
		return unserved
	case apierrors.IsConflict(err):
		return conflict
	case apierrors.IsNotFound(err):
		return gone
	case apierrors.IsForbidden(err):
		if isAuthorizerDenial(err) {
			return forbidden
		}
		return refused
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return invalid
	case isServerError(err):
		return serverError
	}
	return failed
}

func isServerError(err error) bool {
	var answer apierrors.APIStatus
	return errors.As(err, &answer) && answer.Status().Code >= http.StatusInternalServerError
}

// isNoResource reports whether a 404 is about the path rather than the object. For a missing
// object the server sends a Status; for an unknown path client-go creates one with this
// cause.
func isNoResource(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// authorizerDenial is in the message of each 403 from an API server's authorizer,
// as apierrors.NewForbidden and the server's authorization filter compose it:
// `RESOURCE "NAME" is forbidden: User "NAME" cannot VERB resource …`.
const authorizerDenial = " is forbidden: User "

// isAuthorizerDenial reports whether a 403 comes from the authorizer, which denies
// the request for every object, rather than from an admission plugin, which refuses
// one object. Code, reason and details of the Status can be the same for both; only
// the message distinguishes them. If the message changes, a missing right is
// counted as refused and retried for each policy with backoff.
// TestAuthorizerDenialText checks it for the version of apimachinery in go.mod, and
// TestWriterWithoutPatchRightStoresNothing for a real API server.
func isAuthorizerDenial(err error) bool {
	return strings.Contains(err.Error(), authorizerDenial)
}

// identity returns an apply configuration that only identifies o. The UID keeps the
// server from creating an object that was deleted.
func identity(o *unstructured.Unstructured) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(o.GetAPIVersion())
	u.SetKind(o.GetKind())
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	u.SetUID(o.GetUID())
	return u
}

// resourceOf returns the client of a resource in the version of o, in which the server returned
// it.
func resourceOf(client dynamic.Interface, resource schema.GroupResource, o *unstructured.Unstructured) dynamic.NamespaceableResourceInterface {
	return client.Resource(resource.WithVersion(o.GroupVersionKind().Version))
}

// managed reports whether our field manager owns any field of a subresource of o, or of o
// itself if subresource is empty.
func managed(o *unstructured.Unstructured, subresource string) bool {
	for _, f := range o.GetManagedFields() {
		if f.Manager == FieldManager && f.Subresource == subresource {
			return true
		}
	}
	return false
}
