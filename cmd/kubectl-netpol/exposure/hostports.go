package exposure

import (
	"cmp"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// HostPorts returns the ports of a pod that are reached through its node. The node translates them
// before policies see a packet, and keeps the address of the client. Policies do not apply to
// host-network pods, and a port on a loopback address is for the node itself.
func HostPorts(p *corev1.Pod) []corev1.ContainerPort {
	if p.Spec.HostNetwork || compile.Ended(p) {
		return nil
	}
	var ports []corev1.ContainerPort
	for i := range p.Spec.Containers {
		ports = append(ports, hostPorts(&p.Spec.Containers[i])...)
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			ports = append(ports, hostPorts(c)...)
		}
	}
	return ports
}

func hostPorts(c *corev1.Container) []corev1.ContainerPort {
	var ports []corev1.ContainerPort
	for _, port := range c.Ports {
		if addr, err := netip.ParseAddr(port.HostIP); port.HostPort == 0 || err == nil && addr.IsLoopback() {
			continue
		}
		ports = append(ports, port)
	}
	return ports
}

// hostPortEntries returns the host ports of pods, one entry for each port of a workload.
func hostPortEntries(pods []*corev1.Pod) []entry {
	type key struct {
		workload workloads.Ref
		port     corev1.ContainerPort
	}
	var all []entry
	index := map[key]int{}
	for _, p := range pods {
		w := workloads.Of(p)
		for _, port := range HostPorts(p) {
			port.Name = ""
			i, known := index[key{w, port}]
			if !known {
				i = len(all)
				index[key{w, port}] = i
				all = append(all, entry{
					kind: w.Kind, namespace: w.Namespace, name: w.Name, hosts: []string{hostPortName(&port)},
					port: intstr.FromInt32(port.ContainerPort), protocol: cmp.Or(port.Protocol, corev1.ProtocolTCP), clients: fromOutside,
				})
			}
			all[i].pods = append(all[i].pods, p)
		}
	}
	return all
}

func hostPortName(p *corev1.ContainerPort) string {
	if addr, err := netip.ParseAddr(p.HostIP); err == nil && !addr.IsUnspecified() {
		return "hostPort " + netip.AddrPortFrom(addr, uint16(p.HostPort)).String()
	}
	return fmt.Sprint("hostPort ", p.HostPort)
}

// atHostPort returns the pods of a host port. Those without an address are left out.
func (f *finder) atHostPort(e *entry) (all []target, missing string) {
	port, err := reachability.ParsePort(e.port.String(), string(e.protocol))
	if err != nil {
		return nil, err.Error()
	}
	t := target{port: port}
	for _, p := range e.pods {
		if members, err := f.cluster.Endpoints(p.Namespace + "/" + p.Name); err == nil {
			t.members = append(t.members, members...)
		}
	}
	if len(t.members) == 0 {
		return nil, "its pods have no address"
	}
	return []target{t}, ""
}
