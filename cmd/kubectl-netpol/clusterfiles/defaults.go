package clusterfiles

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// setDefaults sets the API server's defaults as far as policies and their readers look at
// them.
func setDefaults(o compile.Object) {
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		setPolicyDefaults(&o.Spec)
		return
	case *corev1.Namespace:
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels[corev1.LabelMetadataName] = o.Name
		return
	case *corev1.Service:
		setServiceDefaults(&o.Spec)
		return
	}
	if p, ok := workloads.PodOf(o); ok { // the spec is shared with the template
		for _, containers := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
			for i := range containers {
				for j := range containers[i].Ports {
					setProtocol(&containers[i].Ports[j].Protocol)
				}
			}
		}
	}
}

func setProtocol(p *corev1.Protocol) {
	if *p == "" {
		*p = corev1.ProtocolTCP
	}
}

func setPolicyDefaults(spec *networkingv1.NetworkPolicySpec) {
	if len(spec.PolicyTypes) == 0 {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(spec.Egress) > 0 {
			spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
	setPorts := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if ports[i].Protocol == nil {
				tcp := corev1.ProtocolTCP
				ports[i].Protocol = &tcp
			}
		}
	}
	for i := range spec.Ingress {
		setPorts(spec.Ingress[i].Ports)
	}
	for i := range spec.Egress {
		setPorts(spec.Egress[i].Ports)
	}
}

func setServiceDefaults(spec *corev1.ServiceSpec) {
	if spec.Type == "" {
		spec.Type = corev1.ServiceTypeClusterIP
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		setProtocol(&p.Protocol)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
}
