// Package cluster is a backend for live Kubernetes clusters. It creates pods through the
// API server and makes connections by a command in each pod. It changes only namespaces
// that it created, and its cluster-scoped policies select only these, so that several suites can use
// a cluster at the same time. It does not depend on the provider that enforces the policies.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Config is the configuration of a Backend.
type Config struct {
	// Image is agnhost of Kubernetes, 2.63 or later.
	Image string
	// Prober is an image with the program prober of kube-network-policies in its PATH. If it is set,
	// pods have it instead of agnhost. It makes ICMP, SCTP, connections of hosts outside, connections
	// that are held and connections that are timed, which agnhost does not.
	Prober string
	// ViaServices makes every connection use a Service in front of the pod.
	ViaServices bool
	// Families are the address families of pods.
	Families []corev1.IPFamily
	// HostNetwork also makes pods in the network namespaces of nodes, which serve their ports on
	// the nodes' addresses. They may bind low ports, which takes a capability, so their namespace
	// must admit privileged pods.
	HostNetwork bool
	// SCTP also makes connections by SCTP, with raw sockets. These take the capability NET_RAW, so
	// namespaces must admit privileged pods.
	SCTP bool
	// Outside is a command that runs a program on a host outside the cluster, whose packets keep
	// their addresses on the way to pods and from them. Its further arguments are the addresses of
	// the host, separated by commas, the program and the program's arguments. Without it, scenarios
	// with such hosts are not supported.
	Outside []string
	// SilentDrops means that the provider drops denied packets without an answer.
	SilentDrops bool
	// CutsEstablished means that the provider ends established connections that a change denies.
	CutsEstablished bool
	// Scale is what the cluster has beside the scenarios.
	Scale Scale
	// PodTimeout limits how long pods may take to run and deleted pods to disappear. Zero
	// means 2 minutes.
	PodTimeout time.Duration
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var faults []error
	if c.Image == "" && c.Prober == "" {
		faults = append(faults, errors.New("Image and Prober are empty"))
	}
	if c.Prober == "" && (c.SCTP || len(c.Outside) > 0 || c.CutsEstablished) {
		faults = append(faults, errors.New("SCTP, Outside and CutsEstablished need Prober, which is empty"))
	}
	if len(c.Families) == 0 {
		faults = append(faults, errors.New("Families is empty"))
	}
	if c.PodTimeout < 0 {
		faults = append(faults, fmt.Errorf("PodTimeout is %s", c.PodTimeout))
	}
	return errors.Join(append(faults, c.Scale.Validate())...)
}

// Backend is a live cluster.
type Backend struct {
	cfg     Config
	name    runName
	program program
	client  kubernetes.Interface
	objects dynamic.Interface // for cluster-scoped policies
	run     runner
	served  []corev1.Protocol // for which pods have servers; their kernels answer echo requests
	nodes   []string          // schedulable, ordered by name; the first one is node-1 of a state
	kinds   []kind            // the cluster-scoped ones, in the order in which they are written
	admin   []netpol.Feature  // that the definitions of kinds have
	scale   *scale            // nil without one
	subnets podSubnets        // of pods so far

	nodeAddresses map[string][]string // by name of the node

	mu        sync.Mutex           // Apply and Probe run concurrently
	addresses map[way]string       // where connections to pods and hosts go
	nodePorts map[servedPort]int32 // of Services
	balancers int                  // load balancers so far
	sessions  map[string]*session  // by name of the pod or host
	hosts     map[string]*host     // outside, by name
	held      int                  // connections so far
	retries   int                  // so far, see netpol.Environment
}

// way is a way to a pod or host, over one family.
type way struct {
	to     string
	family corev1.IPFamily
	via    netpol.Via
}

// servedPort is a port of a pod.
type servedPort struct {
	pod      string
	protocol corev1.Protocol
	port     int32
}

// New connects to a cluster. Most scenarios need two nodes without taints.
func New(ctx context.Context, access *rest.Config, cfg Config) (*Backend, error) {
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	objects, err := dynamic.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	name := runName("netpol-" + rand.String(5))
	return newBackend(ctx, client, objects, name, newExec(access, client, name), cfg)
}

func newBackend(ctx context.Context, client kubernetes.Interface, objects dynamic.Interface, name runName, run runner, cfg Config) (*Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.PodTimeout == 0 {
		cfg.PodTimeout = 2 * time.Minute
	}
	b := &Backend{cfg: cfg, name: name, program: agnhost{netexecPort}, client: client, objects: objects, run: run, served: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP},
		nodeAddresses: make(map[string][]string), addresses: make(map[way]string), nodePorts: make(map[servedPort]int32),
		sessions: make(map[string]*session), hosts: make(map[string]*host)}
	if b.ownProber() {
		b.program = prober{cfg.SCTP}
	}
	if cfg.SCTP {
		b.served = append(b.served, corev1.ProtocolSCTP)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, node := range nodes.Items {
		if node.Spec.Unschedulable || len(node.Spec.Taints) > 0 {
			continue
		}
		b.nodes = append(b.nodes, node.Name)
		for _, address := range node.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				b.nodeAddresses[node.Name] = append(b.nodeAddresses[node.Name], address.Address)
			}
		}
	}
	slices.Sort(b.nodes)
	if len(b.nodes) == 0 {
		return nil, errors.New("the cluster has no node without a taint")
	}
	if err := b.findKinds(ctx); err != nil {
		return nil, err
	}
	if cfg.Scale != (Scale{}) {
		b.scale, err = startScale(ctx, client, name, cfg)
	}
	return b, err
}

func (b *Backend) ownProber() bool { return b.cfg.Prober != "" }

// Name returns the beginning of the names of all namespaces and policies of this run.
func (b *Backend) Name() string { return string(b.name) }

// Supports returns what pods with the rights of the configuration can observe.
func (b *Backend) Supports() netpol.Support {
	features := append([]netpol.Feature{netpol.Services, netpol.NodePorts, netpol.LoadBalancers}, b.admin...)
	if b.cfg.HostNetwork {
		features = append(features, netpol.HostNetwork)
	}
	if len(b.cfg.Outside) > 0 {
		features = append(features, netpol.OutsideHosts)
	}
	if b.cfg.SilentDrops {
		features = append(features, netpol.SilentDrops)
	}
	if b.cfg.CutsEstablished {
		features = append(features, netpol.CutsEstablished)
	}
	protocols := b.served
	if b.ownProber() {
		protocols = append([]corev1.Protocol{netpol.ICMP}, b.served...)
	}
	return netpol.Support{
		Protocols: protocols,
		Families:  b.cfg.Families,
		Features:  features,
		Nodes:     len(b.nodes),
	}
}

// Environment returns the versions of the API server and of the nodes' systems, and the
// subnets of pods and the scale so far.
func (b *Backend) Environment(ctx context.Context) (netpol.Environment, error) {
	server, err := b.client.Discovery().ServerVersion()
	if err != nil {
		return netpol.Environment{}, fmt.Errorf("read the server's version: %w", err)
	}
	nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return netpol.Environment{}, fmt.Errorf("list nodes: %w", err)
	}
	b.mu.Lock()
	environment := netpol.Environment{Kubernetes: server.GitVersion, PodSubnets: b.subnets.most(), Retries: b.retries}
	b.mu.Unlock()
	if b.scale != nil {
		environment.Scale = b.scale.describe()
	}
	for _, node := range nodes.Items {
		environment.Kernels = append(environment.Kernels, node.Status.NodeInfo.KernelVersion)
		environment.Systems = append(environment.Systems, node.Status.NodeInfo.OSImage)
	}
	for _, all := range []*[]string{&environment.Kernels, &environment.Systems} {
		slices.Sort(*all)
		*all = slices.Compact(*all)
	}
	return environment, nil
}

// Apply makes the owned namespaces and everything in them match state. It starts again when the API
// server cannot do something at the moment.
func (b *Backend) Apply(ctx context.Context, state *netpol.State) error {
	return b.repeat(ctx, func() error { return b.apply(ctx, state) })
}

func (b *Backend) apply(ctx context.Context, scenario *netpol.State) error {
	state, err := b.name.named(scenario)
	if err != nil {
		return err
	}
	err = b.applyNamed(ctx, state)
	for i, pod := range state.Pods {
		namespace := scenario.Pods[i].Namespace
		scenario.Pods[i] = pod.DeepCopy()
		scenario.Pods[i].Namespace = namespace
	}
	return err
}

// applyNamed applies a state that has the names of the cluster.
func (b *Backend) applyNamed(ctx context.Context, state *netpol.State) error {
	owned, err := b.ownedNamespaces(ctx)
	if err != nil {
		return err
	}
	if err := b.applyNamespaces(ctx, state, owned); err != nil {
		return err
	}
	if err := b.applyPods(ctx, state); err != nil {
		return err
	}
	if err := b.applyHosts(ctx, state); err != nil {
		return err
	}
	if err := b.applyServices(ctx, state); err != nil {
		return err
	}
	if err := b.applyPolicies(ctx, state); err != nil {
		return err
	}
	return b.applyAdminPolicies(ctx, state)
}

// Close ends the commands and deletes the cluster-scoped policies and namespaces that the
// backend created.
func (b *Backend) Close() error {
	for name := range b.sessions {
		b.endSession(name)
	}
	for name := range b.hosts {
		b.removeHost(name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.cfg.PodTimeout)
	defer cancel()
	err := errors.Join(
		b.repeat(ctx, func() error { return b.applyAdminPolicies(ctx, &netpol.State{}) }),
		b.repeat(ctx, func() error {
			owned, err := b.ownedNamespaces(ctx)
			if err != nil {
				return err
			}
			return b.applyNamespaces(ctx, &netpol.State{}, owned)
		}))
	if b.scale != nil {
		err = errors.Join(err, b.scale.close())
	}
	return err
}

// noteStatus stores the addresses in a pod's status.
func (b *Backend) noteStatus(pod *corev1.Pod, via netpol.Via) {
	for _, ip := range pod.Status.PodIPs {
		b.note(b.name.scenarioName(pod), via, ip.IP)
	}
}

// note stores the addresses of a way to a pod or host for Probe.
func (b *Backend) note(to string, via netpol.Via, ips ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ip := range ips {
		family := corev1.IPv4Protocol
		if strings.Contains(ip, ":") {
			family = corev1.IPv6Protocol
		}
		b.addresses[way{to, family, via}] = ip
	}
}

// wait polls until the condition is true or returns an error, at most for PodTimeout.
func (b *Backend) wait(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	return waitFor(ctx, b.cfg.PodTimeout, what, condition)
}

func waitFor(ctx context.Context, timeout time.Duration, what string, condition func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if done, err := condition(ctx); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-ticker.C:
		}
	}
}

// pollInterval is the interval of wait.
const pollInterval = 200 * time.Millisecond
