package reachability

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/pkg/packet"
)

// Port is what of the destination a connection is for.
type Port struct {
	Proto packet.Proto
	// Number is zero where the protocol has no ports, and where Name is set.
	Number uint16
	// Name is looked up on each destination.
	Name string
}

// ParsePort reads a port, a number or a name, and a protocol: TCP, UDP, SCTP,
// which need one, or ICMP, which has none (it is ICMPv6 between IPv6
// addresses). An error names the part and its value.
func ParsePort(port, protocol string) (Port, error) {
	protos := map[string]packet.Proto{"TCP": packet.TCP, "UDP": packet.UDP, "SCTP": packet.SCTP, "ICMP": packet.ICMP}
	proto, ok := protos[strings.ToUpper(protocol)]
	switch {
	case !ok:
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

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// String returns the number or the name, empty where there is neither.
func (p Port) String() string {
	if p.Name != "" || p.Number == 0 {
		return p.Name
	}
	return strconv.Itoa(int(p.Number))
}

// on returns the port's number on dst. A name that dst declares several times
// for the protocol is the first of them, as it is to a Service.
func (p Port) on(dst *Endpoint) (number uint16, ok bool) {
	if p.Name == "" {
		return p.Number, true
	}
	for _, n := range dst.ports {
		if n.Name == p.Name && n.Proto == p.Proto {
			return n.Port, true
		}
	}
	return 0, false
}
