// Package podwatch lists and watches the pods of a cluster and keeps only the fields that
// policy needs. It reads these directly from the protobuf stream: only a few hundred bytes of
// a pod of several kilobytes matter, and an agent receives every change of every pod. It
// knows how pods are encoded; compile.NewPod knows what they mean.
package podwatch

import (
	"context"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// Object is a pod in a list or a watch. Its metadata has only name, namespace and resource
// version; a bookmark has annotations and no Pod.
type Object struct {
	metav1.ObjectMeta
	Pod *compile.Pod
}

// GetObjectKind returns no kind, because an Object is never encoded.
func (*Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject shares the Pod, which is immutable.
func (o *Object) DeepCopyObject() runtime.Object {
	c := *o
	o.DeepCopyInto(&c.ObjectMeta)
	return &c
}

// List is a list of pods.
type List struct {
	metav1.ListMeta
	Items []Object
}

// GetObjectKind returns no kind, because a List is never encoded.
func (*List) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject shares the Pods, which are immutable.
func (l *List) DeepCopyObject() runtime.Object {
	c := &List{Items: make([]Object, len(l.Items))}
	l.DeepCopyInto(&c.ListMeta)
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*Object)
	}
	return c
}

// Pods lists and watches the pods of all namespaces.
type Pods struct {
	client rest.Interface
	pace   Pace
	shared *Shared
}

// Pace depends on the received lists and events.
type Pace interface {
	// Listing is called when a list begins, and end when it ends.
	Listing() (end func())
	// Changed is called for each event, including those of a streamed list.
	Changed()
}

// New returns the pods of all namespaces. client is a client of the core group.
func New(client rest.Interface, pace Pace) *Pods {
	return &Pods{client, pace, NewShared()}
}

// List returns all pods.
func (p *Pods) List(ctx context.Context, o metav1.ListOptions) (*List, error) {
	defer p.pace.Listing()()
	body, err := p.get(ctx, o)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return readList(body, newDecoder(p.shared))
}

// Watch yields changes. An unreadable event ends it with an error event; the pods must then
// be listed again.
func (p *Pods) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	listed := func() {}
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		listed = p.pace.Listing()
	}
	body, err := p.get(ctx, o)
	if err != nil {
		listed()
		return nil, err
	}
	return newWatcher(body, newDecoder(p.shared), listed, p.pace.Changed), nil
}

func (p *Pods) get(ctx context.Context, o metav1.ListOptions) (io.ReadCloser, error) {
	return p.client.Get().
		Resource("pods").
		VersionedParams(&o, metav1.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeProtobuf).
		Stream(ctx)
}
