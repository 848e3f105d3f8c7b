package reachability

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// Port is the destination port of a connection, or a protocol without ports.
type Port struct {
	Proto packet.Proto
	// Number is zero if the protocol has no ports or Name is set.
	Number uint16
	// Name is resolved on each destination.
	Name string
}

// ProtocolOf returns the protocol of an API object, TCP by default, packet.Unknown for another one.
func ProtocolOf(p corev1.Protocol) packet.Proto {
	switch p {
	case "", corev1.ProtocolTCP:
		return packet.TCP
	case corev1.ProtocolUDP:
		return packet.UDP
	case corev1.ProtocolSCTP:
		return packet.SCTP
	}
	return packet.Unknown
}

// ParsePort parses a port number or name and a protocol: TCP, UDP or SCTP, which need a
// port, or ICMP, which has none and means ICMPv6 between IPv6 addresses. An error names the
// invalid part and its value.
func ParsePort(port, protocol string) (Port, error) {
	proto := ProtocolOf(corev1.Protocol(strings.ToUpper(protocol)))
	if strings.EqualFold(protocol, "ICMP") {
		proto = packet.ICMP
	}
	switch {
	case proto == packet.Unknown || protocol == "":
		return Port{}, fmt.Errorf("protocol %q: must be TCP, UDP, SCTP or ICMP", protocol)
	case !proto.HasPorts() && port != "":
		return Port{}, fmt.Errorf("port %q: %v has no ports", port, proto)
	case !proto.HasPorts():
		return Port{Proto: proto}, nil
	case port == "":
		return Port{}, errors.New("port is missing: a number or the name of a container's port")
	case isNumber(port):
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return Port{}, fmt.Errorf("port %q: must be in 1-65535", port)
		}
		return Port{Proto: proto, Number: uint16(n)}, nil
	case len(validation.IsValidPortName(port)) > 0:
		return Port{}, fmt.Errorf("port %q: neither a number nor the name of a port", port)
	}
	return Port{Proto: proto, Name: port}, nil
}

// TargetPort returns the port of pods behind a port of a Service: by default the same number.
func TargetPort(p *corev1.ServicePort) (Port, error) {
	target := p.TargetPort
	if target == (intstr.IntOrString{}) {
		target = intstr.FromInt32(p.Port)
	}
	return ParsePort(target.String(), cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP)))
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// String returns the number or the name, or "" if there is neither.
func (p Port) String() string {
	if p.Name != "" || p.Number == 0 {
		return p.Name
	}
	return strconv.Itoa(int(p.Number))
}

// DeclaredPorts returns the ports that the containers of a pod declare, named or not.
func DeclaredPorts(pod *corev1.Pod) []policy.NamedPort {
	var ports []policy.NamedPort
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for _, p := range containers[i].Ports {
				if proto := ProtocolOf(p.Protocol); proto != packet.Unknown {
					ports = append(ports, policy.NamedPort{Name: p.Name, Proto: proto, Port: uint16(p.ContainerPort)})
				}
			}
		}
	}
	return ports
}

// On resolves the port among those that a pod names. If it has a name several times for the protocol,
// the first one counts, as in a Service.
func (p Port) On(ports []policy.NamedPort) (number uint16, ok bool) {
	if p.Name == "" {
		return p.Number, true
	}
	for _, n := range ports {
		if n.Name == p.Name && n.Proto == p.Proto {
			return n.Port, true
		}
	}
	return 0, false
}

func (p Port) numberOn(dst *Endpoint) (number uint16, ok bool) { return p.On(dst.ports) }
