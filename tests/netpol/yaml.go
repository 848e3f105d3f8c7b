package netpol

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
)

// PolicyYAML returns a policy with a spec in YAML. It panics if the spec is invalid.
func PolicyYAML(namespace, name, spec string) *networkingv1.NetworkPolicy {
	policy := NewPolicy(namespace, name)
	mustDecode(policy, spec, &policy.Spec)
	return policy
}

// AdminNetworkPolicyYAML is PolicyYAML for that kind.
func AdminNetworkPolicyYAML(name, spec string) *v1alpha1.AdminNetworkPolicy {
	policy := NewAdminNetworkPolicy(name, 0)
	policy.Spec = v1alpha1.AdminNetworkPolicySpec{}
	mustDecode(policy, spec, &policy.Spec)
	return policy
}

// BaselineAdminNetworkPolicyYAML is PolicyYAML for that kind.
func BaselineAdminNetworkPolicyYAML(name, spec string) *v1alpha1.BaselineAdminNetworkPolicy {
	policy := NewBaselineAdminNetworkPolicy()
	policy.Name, policy.Spec = name, v1alpha1.BaselineAdminNetworkPolicySpec{}
	mustDecode(policy, spec, &policy.Spec)
	return policy
}

// ClusterNetworkPolicyYAML is PolicyYAML for that kind.
func ClusterNetworkPolicyYAML(name, spec string) *v1beta1.ClusterNetworkPolicy {
	policy := NewClusterNetworkPolicy(name, "", 0)
	policy.Spec = v1beta1.ClusterNetworkPolicySpec{}
	mustDecode(policy, spec, &policy.Spec)
	return policy
}

// ProposedYAML is ClusterNetworkPolicyYAML for a policy with fields of proposals. Unlike there,
// unknown fields are kept.
func ProposedYAML(name, spec string) *unstructured.Unstructured {
	return untyped(schema.GroupVersion(v1beta1.GroupVersion).WithKind("ClusterNetworkPolicy"), name, spec)
}

// NewCIDRGroup returns a CIDRGroup of these networks (NPEP-182). labels are those of the group, as
// in LabelPod. Apply and Withdraw treat it like a policy.
func NewCIDRGroup(name, labels string, cidrs ...string) *unstructured.Unstructured {
	group := untyped(schema.GroupVersion(v1alpha1.GroupVersion).WithKind("CIDRGroup"), name, `{cidrs: ["`+strings.Join(cidrs, `", "`)+`"]}`)
	if len(cidrs) == 0 {
		group.Object["spec"] = map[string]any{}
	}
	if labels != "" {
		var meta metav1.ObjectMeta
		label(&meta, strings.Split(labels, ","))
		group.SetLabels(meta.Labels)
	}
	return group
}

func untyped(kind schema.GroupVersionKind, name, spec string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	object.SetName(name)
	var decoded map[string]any
	mustDecode(object, spec, &decoded)
	object.Object["spec"] = decoded
	return object
}

func mustDecode(policy Policy, text string, spec any) {
	if err := decode([]byte(text), spec); err != nil {
		panic(fmt.Sprintf("netpol: policy %s: %v", PolicyName(policy), err))
	}
}

// Load reads the YAML and JSON files in a folder recursively into a state: Namespaces, Pods
// and policies of all kinds. A namespace without an object gets one with the label that API
// servers add. Pods without a node are spread over two nodes. The served ports are those
// that pods declare, or 80 if none does. Any other kind, an unknown field or a duplicate
// name is an error.
func Load(folder fs.FS) (*State, error) {
	state := &State{}
	err := fs.WalkDir(folder, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(name)) {
			return err
		}
		content, err := fs.ReadFile(folder, name)
		if err == nil {
			err = state.read(content)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(state.Pods) == 0 {
		return nil, errors.New("no Pod in any file")
	}
	return state, state.complete()
}

// read adds the objects of a file.
func (s *State) read(content []byte) error {
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.readObject(document); err != nil {
			return err
		}
	}
}

// readObject adds one object.
func (s *State) readObject(document []byte) error {
	var kind metav1.TypeMeta
	content, err := toJSON(document)
	if err != nil {
		return err
	}
	if string(content) == "null" {
		return nil // only comments
	}
	if err := json.Unmarshal(content, &kind); err != nil {
		return err
	}
	switch kind.GroupVersionKind().String() {
	case "/v1, Kind=Namespace":
		return readInto(content, &s.Namespaces)
	case "/v1, Kind=Pod":
		return readInto(content, &s.Pods)
	case "networking.k8s.io/v1, Kind=NetworkPolicy":
		return readInto(content, &s.Policies)
	case "policy.networking.k8s.io/v1alpha1, Kind=AdminNetworkPolicy":
		return readInto(content, &s.AdminNetworkPolicies)
	case "policy.networking.k8s.io/v1alpha1, Kind=BaselineAdminNetworkPolicy":
		return readInto(content, &s.BaselineAdminNetworkPolicies)
	case "policy.networking.k8s.io/v1beta1, Kind=ClusterNetworkPolicy", "policy.networking.k8s.io/v1alpha2, Kind=ClusterNetworkPolicy":
		return readInto(content, &s.ClusterNetworkPolicies)
	}
	return fmt.Errorf("%s %s is not one of v1 Namespace, v1 Pod, networking.k8s.io/v1 NetworkPolicy, "+
		"policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy and BaselineAdminNetworkPolicy, policy.networking.k8s.io/v1beta1 or v1alpha2 ClusterNetworkPolicy",
		kind.APIVersion, kind.Kind)
}

func readInto[T any](content []byte, list *[]*T) error {
	object := new(T)
	if err := decode(content, object); err != nil {
		return err
	}
	*list = append(*list, object)
	return nil
}

// toJSON converts YAML, which includes JSON. The added comment keeps the reader from
// treating "{a: b}" as JSON.
func toJSON(content []byte) ([]byte, error) {
	return yaml.ToJSON(append([]byte("#\n"), content...))
}

// decode decodes YAML or JSON. Unknown fields are errors.
func decode(content []byte, object any) error {
	content, err := toJSON(content)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	return decoder.Decode(object)
}

// complete sets defaults for what files may leave out, and rejects duplicate names.
func (s *State) complete() error {
	for i, pod := range s.Pods {
		pod.Namespace = cmp.Or(pod.Namespace, metav1.NamespaceDefault)
		pod.Status = corev1.PodStatus{} // the backend assigns addresses
		pod.Spec.NodeName = nodeName(i % 2)
		s.addPorts(pod)
	}
	for _, policy := range s.Policies {
		policy.Namespace = cmp.Or(policy.Namespace, metav1.NamespaceDefault)
	}
	for _, namespace := range s.Namespaces {
		label(&namespace.ObjectMeta, []string{corev1.LabelMetadataName + "=" + namespace.Name})
	}
	if err := s.rejectDuplicates(); err != nil {
		return err
	}
	s.addNamespaces()
	setDefault(&s.Ports, 80)
	return nil
}

// rejectDuplicates returns an error if a name occurs twice.
func (s *State) rejectDuplicates() error {
	var names []string
	for _, namespace := range s.Namespaces {
		names = append(names, "namespace "+namespace.Name)
	}
	for _, pod := range s.Pods {
		names = append(names, "pod "+PodName(pod))
	}
	for _, policy := range s.AllPolicies() {
		names = append(names, "policy "+PolicyName(policy))
	}
	slices.Sort(names)
	for i := range names[1:] {
		if names[i] == names[i+1] {
			return fmt.Errorf("duplicate %s", names[i])
		}
	}
	return nil
}

// addPorts adds the ports that a pod declares to those that all pods serve.
func (s *State) addPorts(pod *corev1.Pod) {
	for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		for _, port := range container.Ports {
			if !slices.Contains(s.Ports, port.ContainerPort) {
				s.Ports = append(s.Ports, port.ContainerPort)
			}
		}
	}
	slices.Sort(s.Ports)
}

// addNamespaces adds the namespaces of pods and policies that have no object.
func (s *State) addNamespaces() {
	ensure := func(name string) {
		if !slices.ContainsFunc(s.Namespaces, func(n *corev1.Namespace) bool { return n.Name == name }) {
			s.AddNamespace(NewNamespace(name))
		}
	}
	for _, pod := range s.Pods {
		ensure(pod.Namespace)
	}
	for _, policy := range s.Policies {
		ensure(policy.Namespace)
	}
}
