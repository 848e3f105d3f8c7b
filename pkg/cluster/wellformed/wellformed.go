// Package wellformed refuses values that the Go types of objects allow but no API server
// would store: invalid names and addresses. It does not know files, and knows only the names
// of policies.
package wellformed

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Object checks the name and the namespace of an object, the addresses in the status of a
// Pod, and the ranges of pod addresses of a Node. An error begins with the path of the wrong
// field, which is also returned.
func Object(o metav1.Object, kind string, namespaced bool) (path string, err error) {
	if path, err := checkMetadata(o, kind, namespaced); err != nil {
		return path, err
	}
	switch o := o.(type) {
	case *corev1.Pod:
		return checkPod(&o.Status)
	case *corev1.Node:
		return checkNode(&o.Spec)
	}
	return "", nil
}

func checkMetadata(o metav1.Object, kind string, namespaced bool) (path string, err error) {
	if err := checkName(o.GetName(), validation.IsDNS1123Subdomain); err != nil {
		return "metadata.name", fmt.Errorf("metadata.name: %w", err)
	}
	switch {
	case !namespaced && o.GetNamespace() != "":
		return "metadata.namespace", fmt.Errorf("metadata.namespace: not for a %s", kind)
	case namespaced:
		if err := checkName(o.GetNamespace(), validation.IsDNS1123Label); err != nil {
			return "metadata.namespace", fmt.Errorf("metadata.namespace: %w", err)
		}
	}
	return "", nil
}

func checkName(name string, rule func(string) []string) error {
	if name == "" {
		return errors.New("missing")
	}
	if broken := rule(name); len(broken) > 0 {
		return fmt.Errorf("%q: %s", name, strings.Join(broken, "; "))
	}
	return nil
}

func checkPod(status *corev1.PodStatus) (path string, err error) {
	if ip := status.PodIP; ip != "" {
		if err := checkAddress(ip); err != nil {
			return "status.podIP", fmt.Errorf("status.podIP: %w", err)
		}
	}
	for i, ip := range status.PodIPs {
		if err := checkAddress(ip.IP); err != nil {
			path := fmt.Sprintf("status.podIPs[%d]", i)
			return path + ".ip", fmt.Errorf("%s: %w", path, err)
		}
	}
	return "", nil
}

func checkAddress(s string) error {
	addr, err := netip.ParseAddr(s)
	if err == nil && addr.Zone() != "" {
		err = fmt.Errorf("%q has a zone", s)
	}
	return err
}

func checkNode(spec *corev1.NodeSpec) (path string, err error) {
	if cidr := spec.PodCIDR; cidr != "" {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return "spec.podCIDR", fmt.Errorf("spec.podCIDR: %w", err)
		}
	}
	for i, cidr := range spec.PodCIDRs {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			path := fmt.Sprintf("spec.podCIDRs[%d]", i)
			return path, fmt.Errorf("%s: %w", path, err)
		}
	}
	return "", nil
}
