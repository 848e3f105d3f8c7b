package status

import (
	"context"
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// FieldManager is the name under which every writer applies, whichever of them
// leads: what one has written the next one owns.
const FieldManager = "kube-network-policies-status"

// The names of sinks, as flags and metrics use them.
const (
	SubresourceSink = "subresource"
	AnnotationSink  = "annotation"
)

// ErrUnserved is wrapped by a Sink's errors when the server cannot store
// conditions in that way, for any object.
var ErrUnserved = errors.New("not served")

// Sink is a way to store conditions on objects of one kind. Its methods never
// create an object, never touch what is not ours, and may be called from
// several goroutines. The objects they are given are read only.
type Sink interface {
	// Name is a constant, for the log and for metrics.
	Name() string
	// Read returns our conditions on o, nil if there are none that can be read.
	Read(o *unstructured.Unstructured) []metav1.Condition
	// Marked tells whether anything of ours is on o, also what Read cannot make
	// sense of. Without o's managed fields it may miss something.
	Marked(o *unstructured.Unstructured) bool
	// Probe asks the server whether Write would work for o, and changes nothing.
	// An error that wraps ErrUnserved says no, any other could not tell.
	Probe(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error
	// Write stores conditions on the o that the server still holds in this
	// version: an object that was changed meanwhile is a conflict, one that was
	// deleted is a conflict or not found.
	Write(ctx context.Context, o *unstructured.Unstructured, conditions []metav1.Condition) error
	// Clear removes our conditions, whatever version the server holds of o.
	Clear(ctx context.Context, o *unstructured.Unstructured) error
}

// result is how a request ended, for metrics and for what comes next.
type result string

const (
	success   result = "success"
	conflict  result = "conflict"  // changed or deleted meanwhile
	gone      result = "gone"      // deleted
	unserved  result = "unserved"  // the sink does not work here
	forbidden result = "forbidden" // no right to use the sink at all
	refused   result = "refused"   // an admission plugin said no to this object
	invalid   result = "invalid"   // a defect of ours
	failed    result = "error"     // worth another try
)

var results = []result{success, conflict, gone, unserved, forbidden, refused, invalid, failed}

func resultOf(err error) result {
	switch {
	case err == nil:
		return success
	case errors.Is(err, ErrUnserved), isNoResource(err):
		return unserved
	case apierrors.IsConflict(err):
		return conflict
	case apierrors.IsNotFound(err):
		return gone
	case apierrors.IsForbidden(err):
		if isUnauthorized(err) {
			return forbidden
		}
		return refused
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return invalid
	}
	return failed
}

// isNoResource tells a 404 about the path from one about the object: the latter
// comes with a Status from the server, for the former the client makes one up.
func isNoResource(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// isUnauthorized tells a 403 of the authorizer, which holds for every object,
// from one of an admission plugin. Only the text tells: API servers word it
// alike, whatever authorizes.
func isUnauthorized(err error) bool {
	return strings.Contains(err.Error(), "is forbidden: User ")
}

// identity returns an apply configuration of o with nothing in it but who is
// meant. The UID keeps a server from creating an object that was deleted.
func identity(o *unstructured.Unstructured) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(o.GetAPIVersion())
	u.SetKind(o.GetKind())
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	u.SetUID(o.GetUID())
	return u
}

// managed tells whether our field manager owns anything of o in a subresource,
// or with "" in the object itself.
func managed(o *unstructured.Unstructured, subresource string) bool {
	for _, f := range o.GetManagedFields() {
		if f.Manager == FieldManager && f.Subresource == subresource {
			return true
		}
	}
	return false
}
