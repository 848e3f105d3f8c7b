package manifests

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// complete fills in what an API server would and refuses what it would not
// store and an informer could not hold. An error comes with the path of the
// field that is wrong.
func (k kind) complete(o object) (path string, err error) {
	if err := checkName(o.GetName(), validation.IsDNS1123Subdomain); err != nil {
		return "metadata.name", fmt.Errorf("metadata.name: %w", err)
	}
	switch {
	case !k.Namespaced && o.GetNamespace() != "":
		return "metadata.namespace", fmt.Errorf("metadata.namespace: not for a %s", k.Name)
	case k.Namespaced && o.GetNamespace() == "":
		o.SetNamespace(metav1.NamespaceDefault)
	case k.Namespaced:
		if err := checkName(o.GetNamespace(), validation.IsDNS1123Label); err != nil {
			return "metadata.namespace", fmt.Errorf("metadata.namespace: %w", err)
		}
	}
	if o.GetUID() == "" {
		o.SetUID(types.UID(k.Name + "/" + o.GetNamespace() + "/" + o.GetName()))
	}
	o.SetResourceVersion("") // the table gives versions
	if k.check == nil {
		return "", nil
	}
	return k.check(o)
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

func checkPod(o object) (path string, err error) {
	status := &o.(*corev1.Pod).Status
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

func checkNode(o object) (path string, err error) {
	spec := &o.(*corev1.Node).Spec
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
