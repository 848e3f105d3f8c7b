package proposed

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServiceAccounts selects the pods whose service account has one of the names, in the namespaces of
// the selector (NPEP-173, which names no fields yet).
type ServiceAccounts struct {
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	Names             []string             `json:"names"`
}
