package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// applyPods makes the pods of owned namespaces match state, waits until they run, and
// stores their status in state. If the state has addresses already, a pod without them is
// recreated: it comes from RecreatePod.
func (b *Backend) applyPods(ctx context.Context, state *netpol.State) error {
	recreate := slices.ContainsFunc(state.Pods, func(p *corev1.Pod) bool { return len(p.Status.PodIPs) > 0 })
	for _, namespace := range state.Namespaces {
		if err := b.deletePods(ctx, state, namespace.Name, recreate); err != nil {
			return err
		}
	}
	for _, pod := range state.Pods {
		if err := b.createAccount(ctx, pod); err != nil {
			return err
		}
		if err := b.applyPod(ctx, state, pod); err != nil {
			return fmt.Errorf("pod %s: %w", netpol.PodName(pod), err)
		}
	}
	moved := make(map[string]string)
	for i, pod := range state.Pods {
		if !netpol.IsUp(pod) {
			continue
		}
		running, err := b.waitRunning(ctx, pod)
		if err != nil {
			return err
		}
		noteMoves(moved, pod.Status.PodIPs, running.Status.PodIPs)
		state.Pods[i] = pod.DeepCopy()
		state.Pods[i].Status = running.Status
		b.noteStatus(state.Pods[i], netpol.Direct)
		b.subnets.add(running)
	}
	return b.writeStatuses(ctx, state, moved)
}

// createAccount creates the service account that a pod names, which must exist before the pod. It
// goes with its namespace.
func (b *Backend) createAccount(ctx context.Context, pod *corev1.Pod) error {
	name := accountOf(pod)
	if name == defaultAccount {
		return nil
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}}
	_, err := b.client.CoreV1().ServiceAccounts(pod.Namespace).Create(ctx, account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("service account %s/%s: %w", pod.Namespace, name, err)
	}
	return nil
}

// defaultAccount is what every namespace has.
const defaultAccount = "default"

// accountOf returns the name of a pod's service account.
func accountOf(pod *corev1.Pod) string { return cmp.Or(pod.Spec.ServiceAccountName, defaultAccount) }

// deletePods deletes the pods of a namespace that state lacks, that run differently, or that must be
// recreated, and waits until they are gone.
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
			return object != nil && runAlike(&p, object)
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
		b.endSession(b.name.scenarioName(&pod))
	}
	return b.wait(ctx, "pods of "+namespace+" to be gone", func(ctx context.Context) (bool, error) {
		left, err := surplus(ctx)
		return len(left) == 0, err
	})
}

// runAlike reports whether two pods run on the same node, with the same account, and serve the same
// ports with the same names.
func runAlike(a, b *corev1.Pod) bool {
	alike := func(a, b corev1.Container) bool {
		return slices.Equal(a.Command, b.Command) && slices.Equal(a.Env, b.Env) && slices.Equal(a.Ports, b.Ports)
	}
	return a.Spec.NodeName == b.Spec.NodeName && a.Spec.SchedulerName == b.Spec.SchedulerName && accountOf(a) == accountOf(b) &&
		slices.EqualFunc(a.Spec.Containers, b.Spec.Containers, alike) && slices.EqualFunc(a.Spec.InitContainers, b.Spec.InitContainers, alike)
}

// applyPod creates a pod or changes its labels.
func (b *Backend) applyPod(ctx context.Context, state *netpol.State, pod *corev1.Pod) error {
	object, err := b.podObject(state, pod)
	if err != nil {
		return err
	}
	client := b.client.CoreV1().Pods(pod.Namespace)
	current, err := client.Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, object, metav1.CreateOptions{})
	case err == nil && !maps.Equal(current.Labels, object.Labels):
		current.Labels = object.Labels
		_, err = client.Update(ctx, current, metav1.UpdateOptions{})
	}
	return err
}

// podObject returns a pod that serves the ports of state under the names that the state's
// pod declares. It needs no privileges and complies with the Pod Security Standard
// "restricted", unless it is in the network of its node or has raw sockets.
func (b *Backend) podObject(state *netpol.State, pod *corev1.Pod) (*corev1.Pod, error) {
	node := nodeIndex(pod.Spec.NodeName)
	if node < 0 || node >= len(b.nodes) {
		return nil, fmt.Errorf("no node %q", pod.Spec.NodeName)
	}
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: maps.Clone(pod.Labels)},
		Spec: corev1.PodSpec{
			NodeName:                      b.nodes[node],
			SchedulerName:                 corev1.DefaultSchedulerName,
			ServiceAccountName:            pod.Spec.ServiceAccountName,
			TerminationGracePeriodSeconds: new(int64(0)),
			AutomountServiceAccountToken:  new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   new(true),
				RunAsUser:      new(int64(65532)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				Sysctls: []corev1.Sysctl{ // they also apply to IPv6
					{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"},
					{Name: "net.ipv4.ping_group_range", Value: "0 2147483647"},
				},
			},
			Containers:     b.containers(state, pod),
			InitContainers: b.initContainers(pod),
		},
	}
	if b.cfg.SCTP {
		asRoot(&object.Spec, "NET_RAW")
	}
	if pod.Spec.HostNetwork {
		joinNode(&object.Spec)
	}
	if !netpol.IsUp(pod) {
		onlyObject(&object.Spec)
	}
	if object.Labels == nil {
		object.Labels = make(map[string]string)
	}
	object.Labels[podLabel] = pod.Name
	return object, nil
}

// nodeIndex returns 0 for node-1, 1 for node-2 and so on, and -1 for other names.
func nodeIndex(name string) int {
	number, err := strconv.Atoi(strings.TrimPrefix(name, "node-"))
	if err != nil || number < 1 {
		return -1
	}
	return number - 1
}

// asRoot gives the containers of a pod a capability, which another user would lose.
func asRoot(spec *corev1.PodSpec, capability corev1.Capability) {
	spec.SecurityContext.RunAsNonRoot, spec.SecurityContext.RunAsUser = nil, new(int64(0))
	for _, container := range spec.Containers {
		container.SecurityContext.Capabilities.Add = append(container.SecurityContext.Capabilities.Add, capability)
	}
}

// joinNode moves a pod to the network of its node, whose sysctls it cannot set.
func joinNode(spec *corev1.PodSpec) {
	spec.HostNetwork, spec.SecurityContext.Sysctls = true, nil
	asRoot(spec, "NET_BIND_SERVICE")
	for i := range spec.Containers {
		container := &spec.Containers[i]
		for j := range container.Ports {
			container.Ports[j].HostPort = container.Ports[j].ContainerPort // as the API server sets it
		}
	}
}

// proberContainer is the container that serves and connects.
const proberContainer = "prober"

// containers returns a container that serves all ports, and further containers that only
// declare ports whose names are already declared: names must be unique in a container but
// not in a pod.
func (b *Backend) containers(state *netpol.State, pod *corev1.Pod) []corev1.Container {
	command, env := b.program.serve(state.Ports)
	containers := []corev1.Container{b.container(proberContainer, command...)}
	containers[0].Env = env
	for _, port := range state.Ports {
		for _, protocol := range b.served {
			declared := corev1.ContainerPort{Name: declaredName(pod, protocol, port), ContainerPort: port, Protocol: protocol}
			i := slices.IndexFunc(containers, func(c corev1.Container) bool { return !declares(c, declared.Name) })
			if i < 0 {
				i = len(containers)
				containers = append(containers, b.container(fmt.Sprintf("%s-%d", proberContainer, i), b.program.idle()...))
			}
			containers[i].Ports = append(containers[i].Ports, declared)
		}
	}
	return containers
}

func declares(c corev1.Container, name string) bool {
	return name != "" && slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
}

// initContainers returns containers that only declare ports: some end before the others start, and
// some are sidecars.
func (b *Backend) initContainers(pod *corev1.Pod) []corev1.Container {
	var containers []corev1.Container
	for _, declared := range pod.Spec.InitContainers {
		container := b.container(declared.Name, b.program.end()...)
		if declared.RestartPolicy != nil && *declared.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			container = b.container(declared.Name, b.program.idle()...)
			container.RestartPolicy = declared.RestartPolicy
		}
		for _, port := range declared.Ports {
			port.Protocol = cmp.Or(port.Protocol, corev1.ProtocolTCP)
			container.Ports = append(container.Ports, port)
		}
		containers = append(containers, container)
	}
	return containers
}

// container returns a container that runs a command.
func (b *Backend) container(name string, command ...string) corev1.Container {
	return corev1.Container{
		Name:            name,
		Image:           cmp.Or(b.cfg.Prober, b.cfg.Image),
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         command,
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

// startTimeout is how long a pod may be stuck before whyStuck ends the wait for it. Kubelets try
// again within seconds what fails only for a moment, such as a network plugin that is not ready yet.
const startTimeout = 20 * time.Second

// waitRunning waits until a pod is ready and has an address.
func (b *Backend) waitRunning(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	var running *corev1.Pod
	started := time.Now()
	err := b.wait(ctx, "pod "+netpol.PodName(pod)+" to run", func(ctx context.Context) (_ bool, err error) {
		running, err = b.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || isReady(running) && len(running.Status.PodIPs) > 0 {
			return err == nil, err
		}
		if running.Status.Phase == corev1.PodFailed { // such as one whose ports on the node another pod has
			return false, fmt.Errorf("pod %s does not run: %s: %s", netpol.PodName(pod), running.Status.Reason, running.Status.Message)
		}
		if time.Since(started) < startTimeout {
			return false, nil
		}
		return false, b.whyStuck(ctx, running)
	})
	return running, err
}

// stuckReasons are the reasons of events of pods that do not start unless the cluster is mended.
var stuckReasons = []string{"FailedScheduling", "FailedCreatePodSandBox", "Failed", "BackOff", "InspectFailed", "ErrImageNeverPull"}

// whyStuck returns an error with the kubelet's or the scheduler's latest word on why a pod does not
// start, or nil if it may still start.
func (b *Backend) whyStuck(ctx context.Context, pod *corev1.Pod) error {
	events, err := b.client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
	if err != nil {
		return fmt.Errorf("list events of pod %s: %w", netpol.PodName(pod), err)
	}
	warnings := slices.DeleteFunc(events.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.Name != pod.Name || e.Type != corev1.EventTypeWarning || !slices.Contains(stuckReasons, e.Reason)
	})
	if len(warnings) == 0 {
		return nil
	}
	last := slices.MaxFunc(warnings, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return fmt.Errorf("pod %s does not start: %s: %s", netpol.PodName(pod), last.Reason, last.Message)
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
