package manifests

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/wellformed"
)

// complete fills in what an API server would and refuses what it would not
// store and an informer could not hold. An error comes with the path of the
// field that is wrong.
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
	o.SetResourceVersion("") // the table gives versions
	return "", nil
}
