package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// applyPods makes the pods of owned namespaces match state, waits until they run, and
// writes their status into state. A pod without addresses is recreated if other pods of
// the state have addresses: RecreatePod made it.
func (b *Backend) applyPods(ctx context.Context, state *netpol.State) error {
	recreate := slices.ContainsFunc(state.Pods, func(p *corev1.Pod) bool { return len(p.Status.PodIPs) > 0 })
	for _, namespace := range state.Namespaces {
		if err := b.deletePods(ctx, state, namespace.Name, recreate); err != nil {
			return err
		}
	}
	for _, pod := range state.Pods {
		if err := b.applyPod(ctx, state, pod); err != nil {
			return fmt.Errorf("pod %s: %w", netpol.PodName(pod), err)
		}
	}
	for i, pod := range state.Pods {
		running, err := b.waitRunning(ctx, pod)
		if err != nil {
			return err
		}
		state.Pods[i] = pod.DeepCopy()
		state.Pods[i].Status = running.Status
		for _, ip := range running.Status.PodIPs {
			b.note(b.addresses, netpol.PodName(pod), ip.IP)
		}
	}
	return nil
}

// deletePods deletes the pods of a namespace that state does not have, that serve
// other ports, or that are to be recreated, and waits until they are gone.
func (b *Backend) deletePods(ctx context.Context, state *netpol.State, namespace string, recreate bool) error {
	client := b.client.CoreV1().Pods(namespace)
	keep := make(map[string]*corev1.Pod)
	for _, pod := range state.Pods {
		if recreate && len(pod.Status.PodIPs) == 0 {
			continue
		}
		object, err := b.podObject(state, pod)
		if err != nil {
			return fmt.Errorf("pod %s: %w", netpol.PodName(pod), err)
		}
		keep[netpol.PodName(pod)] = object
	}
	surplus := func(ctx context.Context) ([]corev1.Pod, error) {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list pods of %s: %w", namespace, err)
		}
		return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
			object := keep[netpol.PodName(&p)]
			return object != nil && serveAlike(&p, object)
		}), nil
	}
	pods, err := surplus(ctx)
	if err != nil {
		return err
	}
	for _, pod := range pods {
		err := client.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", netpol.PodName(&pod), err)
		}
		b.endSession(netpol.PodName(&pod))
	}
	return b.wait(ctx, "pods of "+namespace+" to be gone", func(ctx context.Context) (bool, error) {
		left, err := surplus(ctx)
		return len(left) == 0, err
	})
}

// serveAlike reports whether two pods serve the same ports with the same names.
func serveAlike(a, b *corev1.Pod) bool {
	return slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, func(a, b corev1.Container) bool {
		return slices.Equal(a.Command, b.Command) && slices.Equal(a.Ports, b.Ports)
	})
}

// applyPod creates a pod, or changes its labels.
func (b *Backend) applyPod(ctx context.Context, state *netpol.State, pod *corev1.Pod) error {
	object, err := b.podObject(state, pod)
	if err != nil {
		return err
	}
	client := b.client.CoreV1().Pods(pod.Namespace)
	is, err := client.Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, object, metav1.CreateOptions{})
	case err == nil && !maps.Equal(is.Labels, object.Labels):
		is.Labels = object.Labels
		_, err = client.Update(ctx, is, metav1.UpdateOptions{})
	}
	return err
}

// podObject returns a pod that serves the ports of state under the names that the state's
// pod declares. It needs no privileges: it meets the standard "restricted" for the security
// of pods.
func (b *Backend) podObject(state *netpol.State, pod *corev1.Pod) (*corev1.Pod, error) {
	number, err := strconv.Atoi(strings.TrimPrefix(pod.Spec.NodeName, "node-"))
	if err != nil || number < 1 || number > len(b.nodes) {
		return nil, fmt.Errorf("no node %q", pod.Spec.NodeName)
	}
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: maps.Clone(pod.Labels)},
		Spec: corev1.PodSpec{
			NodeName:                      b.nodes[number-1],
			TerminationGracePeriodSeconds: new(int64(0)),
			AutomountServiceAccountToken:  new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				RunAsUser:      new(int64(65532)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				Sysctls:        []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}, // of IPv6, too
			},
			Containers: b.containers(state, pod),
		},
	}
	if object.Labels == nil {
		object.Labels = make(map[string]string)
	}
	object.Labels[podLabel] = pod.Name
	return object, nil
}

// proberContainer is the container that serves and connects.
const proberContainer = "prober"

// containers returns one that serves every port, and others that only declare the ports
// whose names it declares already: a pod may have a name twice, a container may not.
func (b *Backend) containers(state *netpol.State, pod *corev1.Pod) []corev1.Container {
	containers := []corev1.Container{b.container(proberContainer)}
	for _, port := range state.Ports {
		containers[0].Command = append(containers[0].Command, fmt.Sprintf("-listen=:%d", port))
		for _, protocol := range b.Supports().Protocols {
			declared := corev1.ContainerPort{Name: declaredName(pod, protocol, port), ContainerPort: port, Protocol: protocol}
			i := slices.IndexFunc(containers, func(c corev1.Container) bool { return !declares(c, declared.Name) })
			if i < 0 {
				i = len(containers)
				containers = append(containers, b.container(fmt.Sprintf("%s-%d", proberContainer, i)))
				containers[i].Command = append(containers[i].Command, "-listen=127.0.0.1:0")
			}
			containers[i].Ports = append(containers[i].Ports, declared)
		}
	}
	return containers
}

func declares(c corev1.Container, name string) bool {
	return name != "" && slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

// container runs a server, whose addresses are to be added.
func (b *Backend) container(name string) corev1.Container {
	return corev1.Container{
		Name:            name,
		Image:           b.cfg.Image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{"prober", "serve"},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

// declaredName returns the name under which a pod declares a port, if any.
func declaredName(pod *corev1.Pod, protocol corev1.Protocol, port int32) string {
	for _, container := range pod.Spec.Containers {
		for _, declared := range container.Ports {
			if declared.ContainerPort == port && (declared.Protocol == protocol || declared.Protocol == "" && protocol == corev1.ProtocolTCP) {
				return declared.Name
			}
		}
	}
	return ""
}

// waitRunning waits until all of a pod runs and it has an address.
func (b *Backend) waitRunning(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	var is *corev1.Pod
	err := b.wait(ctx, "pod "+netpol.PodName(pod)+" to run", func(ctx context.Context) (_ bool, err error) {
		is, err = b.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		return err == nil && isReady(is) && len(is.Status.PodIPs) > 0, err
	})
	return is, err
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// applyServices creates a Service in front of each pod and notes its addresses.
func (b *Backend) applyServices(ctx context.Context, state *netpol.State) error {
	for _, pod := range state.Pods {
		client := b.client.CoreV1().Services(pod.Namespace)
		service, err := client.Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			service, err = client.Create(ctx, b.serviceObject(state, pod), metav1.CreateOptions{})
		}
		if err != nil {
			return fmt.Errorf("service %s: %w", netpol.PodName(pod), err)
		}
		b.note(b.services, netpol.PodName(pod), service.Spec.ClusterIPs...)
	}
	return nil
}

func (b *Backend) serviceObject(state *netpol.State, pod *corev1.Pod) *corev1.Service {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{podLabel: pod.Name},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		},
	}
	for _, port := range state.Ports {
		for _, protocol := range b.Supports().Protocols {
			service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
				Name: fmt.Sprintf("%s-%d", strings.ToLower(string(protocol)), port), Port: port, Protocol: protocol,
			})
		}
	}
	return service
}
