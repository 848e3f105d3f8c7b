// Package cluster is a backend for live Kubernetes clusters. It creates pods through the
// API server; a command in each makes its connections. It changes only namespaces
// that it created, and its cluster-scoped policies select no other. It does not depend
// on what enforces the policies.
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	policyapi "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Config is the configuration of a Backend.
type Config struct {
	// Image has the program prober of kube-network-policies in its PATH.
	Image string
	// ViaServices makes every connection use a Service in front of the pod.
	ViaServices bool
	// Families are the address families of pods.
	Families []corev1.IPFamily
	// SilentDrops means that the provider drops denied packets without an answer.
	SilentDrops bool
	// PodTimeout is how long pods may take to run, and deleted pods to be gone, 2 minutes
	// if zero.
	PodTimeout time.Duration
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var faults []error
	if c.Image == "" {
		faults = append(faults, errors.New("Image is empty"))
	}
	if len(c.Families) == 0 {
		faults = append(faults, errors.New("Families is empty"))
	}
	if c.PodTimeout < 0 {
		faults = append(faults, fmt.Errorf("PodTimeout is %s", c.PodTimeout))
	}
	return errors.Join(faults...)
}

// Backend is a live cluster.
type Backend struct {
	cfg      Config
	client   kubernetes.Interface
	policies policyapi.Interface // of administrators
	run      runner
	nodes    []string         // schedulable, by name; node-1 of a state is the first
	admin    []netpol.Feature // of administrators' kinds

	mu        sync.Mutex          // Apply and Probe run at the same time
	addresses map[string]string   // of pods, by key
	services  map[string]string   // of the Services in front of them
	sessions  map[string]*session // of pods, by name
}

// New connects to a cluster. Most scenarios need two nodes without taints.
func New(ctx context.Context, access *rest.Config, cfg Config) (*Backend, error) {
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	policies, err := policyapi.NewForConfig(access)
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return newBackend(ctx, client, policies, newExec(access, client), cfg)
}

func newBackend(ctx context.Context, client kubernetes.Interface, policies policyapi.Interface, run runner, cfg Config) (_ *Backend, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.PodTimeout == 0 {
		cfg.PodTimeout = 2 * time.Minute
	}
	b := &Backend{cfg: cfg, client: client, policies: policies, run: run,
		addresses: make(map[string]string), services: make(map[string]string), sessions: make(map[string]*session)}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, node := range nodes.Items {
		if !node.Spec.Unschedulable && len(node.Spec.Taints) == 0 {
			b.nodes = append(b.nodes, node.Name)
		}
	}
	slices.Sort(b.nodes)
	if len(b.nodes) == 0 {
		return nil, errors.New("the cluster has no node without a taint")
	}
	b.admin, err = b.adminFeatures(ctx)
	return b, err
}

// Supports returns what ordinary pods can observe.
func (b *Backend) Supports() netpol.Support {
	features := append([]netpol.Feature{netpol.Services}, b.admin...)
	if b.cfg.SilentDrops {
		features = append(features, netpol.SilentDrops)
	}
	return netpol.Support{
		Protocols: []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP},
		Families:  b.cfg.Families,
		Features:  features,
		Nodes:     len(b.nodes),
	}
}

// Apply makes the owned namespaces, with all that is in them, match state.
func (b *Backend) Apply(ctx context.Context, state *netpol.State) error {
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
	if state.Services || b.cfg.ViaServices {
		if err := b.applyServices(ctx, state); err != nil {
			return err
		}
	}
	if err := b.applyPolicies(ctx, state); err != nil {
		return err
	}
	return b.applyAdminPolicies(ctx, state)
}

// Close ends the commands, and deletes the cluster-scoped policies and the namespaces that
// the backend created.
func (b *Backend) Close() error {
	for pod := range b.sessions {
		b.endSession(pod)
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.cfg.PodTimeout)
	defer cancel()
	policiesErr := b.applyAdminPolicies(ctx, &netpol.State{})
	owned, err := b.ownedNamespaces(ctx)
	if err == nil {
		err = b.applyNamespaces(ctx, &netpol.State{}, owned)
	}
	return errors.Join(policiesErr, err)
}

// note stores the addresses of a pod or of its Service for Probe.
func (b *Backend) note(addresses map[string]string, pod string, ips ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ip := range ips {
		family := corev1.IPv4Protocol
		if strings.Contains(ip, ":") {
			family = corev1.IPv6Protocol
		}
		addresses[key(pod, family)] = ip
	}
}

// wait polls until the condition holds, returns an error, or PodTimeout is over.
func (b *Backend) wait(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.PodTimeout)
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
