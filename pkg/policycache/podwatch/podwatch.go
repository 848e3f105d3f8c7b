// Package podwatch lists and watches the pods of a cluster, and keeps of each
// what policy needs. It reads that straight from the protobuf encoding, as it
// comes in: a pod of some kilobytes has a few hundred bytes that matter, and an
// agent sees every pod of its cluster change. It knows how pods are encoded and
// not what they mean, which is compile.NewPod's.
package podwatch

import (
	"context"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// Object is a pod in a list or a watch. Of its metadata it has the
// name, the namespace and the resource version; a bookmark has its annotations
// and no Pod.
type Object struct {
	metav1.ObjectMeta
	Pod *compile.Pod
}

// GetObjectKind returns no kind: an Object is nothing that is sent.
func (*Object) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject shares the Pod, which never changes.
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

// GetObjectKind returns no kind: a List is nothing that is sent.
func (*List) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject shares the Pods, which never change.
func (l *List) DeepCopyObject() runtime.Object {
	c := &List{Items: make([]Object, len(l.Items))}
	l.DeepCopyInto(&c.ListMeta)
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopyObject().(*Object)
	}
	return c
}

// Pods are the pods of a namespace, or of all.
type Pods struct {
	client    rest.Interface
	namespace string // empty for all
	pace      Pace
	shared    *Shared
}

// Pace depends on what is received.
type Pace interface {
	// Listing is called when a list begins, and end when it has ended.
	Listing() (end func())
	// Changed is called for each event, also for those of a list.
	Changed()
}

// New returns the pods of all namespaces that client serves, which is one of the core group.
func New(client rest.Interface, pace Pace) *Pods {
	return &Pods{client, metav1.NamespaceAll, pace, NewShared()}
}

// In returns the pods of one namespace, or those of all if it is empty.
func (p *Pods) In(namespace string) *Pods {
	in := *p
	in.namespace = namespace
	return &in
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

// Watch yields changes. An event that cannot be read ends it with an error
// event, after which the pods have to be listed again.
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
		NamespaceIfScoped(p.namespace, p.namespace != metav1.NamespaceAll).
		Resource("pods").
		VersionedParams(&o, scheme.ParameterCodec).
		SetHeader("Accept", runtime.ContentTypeProtobuf).
		Stream(ctx)
}
