package manifests

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/wellformed"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// complete sets defaults as an API server does, and refuses objects that an API server would
// not store or an informer could not hold. An error comes with the path of the wrong field.
func complete(k *compile.Kind, o object) (path string, err error) {
	if k.Namespaced && o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	if path, err := wellformed.Object(o, k.Name, k.Namespaced); err != nil {
		return path, err
	}
	if o.GetUID() == "" {
		o.SetUID(types.UID(k.Name + "/" + o.GetNamespace() + "/" + o.GetName()))
	}
	o.SetResourceVersion("") // the table sets versions
	return "", nil
}
