// Package wellformed checks what the types of objects allow and no API server would
// store: names, and the addresses that others are compared with. It knows nothing of
// files, and nothing of policies but their names.
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

// Metadata checks the name and the namespace of an object. An error begins with the
// path of the field that is wrong, which is returned, too.
func Metadata(o metav1.Object, kind string, namespaced bool) (path string, err error) {
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

// Pod checks the addresses in the status of a pod, with errors as those of Metadata.
func Pod(p *corev1.Pod) (path string, err error) {
	status := &p.Status
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

// Node checks the ranges of pod addresses of a node, with errors as those of Metadata.
func Node(n *corev1.Node) (path string, err error) {
	spec := &n.Spec
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
