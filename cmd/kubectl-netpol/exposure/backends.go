package exposure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Backend is an address and a port behind a port of a Service without a selector.
type Backend struct {
	Address  string
	PortName string // of the port of the Service
	Protocol corev1.Protocol
	Port     int32
}

// Texts returns backends as "172.18.0.2 at TCP 6443, ...".
func Texts(backends []Backend) string {
	var texts []string
	for _, b := range backends {
		texts = append(texts, fmt.Sprintf("%s at %s %d", b.Address, b.Protocol, b.Port))
	}
	return strings.Join(texts, ", ")
}

// Backends are the backends that EndpointSlices or Endpoints have, by "namespace/name" of the
// Service.
type Backends map[string][]Backend

// Behind returns the backends of some ports of a Service.
func (b Backends) Behind(s *corev1.Service, ports []corev1.ServicePort) []Backend {
	return slices.DeleteFunc(slices.Clone(b[s.Namespace+"/"+s.Name]), func(b Backend) bool {
		return !slices.ContainsFunc(ports, func(p corev1.ServicePort) bool {
			return p.Name == b.PortName && cmp.Or(p.Protocol, corev1.ProtocolTCP) == b.Protocol
		})
	})
}
