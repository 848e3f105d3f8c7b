package newpods

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
)

const (
	// believedFor is how long the agents of a node are known without listing them again, when an
	// agent presents a key that one of them has. An agent that presents another key has them listed
	// again.
	believedFor = 10 * time.Minute
	// askRate and askBurst limit lists that this agent asks for itself, per second and at once. Those for
	// clients have limits of their own: any client can name a node.
	askRate, askBurst = 20, bounds.AskedNodes
	// listTimeout is less than a handshake may take.
	listTimeout = 3 * time.Second
)

// errBusy is the error while too many nodes are asked for.
var errBusy = errors.New("the agents of too many nodes are asked for")

// Pods lists pods of the agents' namespace.
type Pods interface {
	List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error)
}

// Agents finds the agents of nodes and their keys. Its methods may be called from any goroutine.
type Agents struct {
	pods Pods
	node string     // of this agent
	key  tlskey.Key // of this agent

	clients, asks *rate.Limiter

	mu      sync.Mutex
	account string // the service account of all agents, empty while this agent's pod is not known
	known   map[string]found
}

// found is what a list of a node's agents has found.
type found struct {
	agents []agent
	at     time.Time
}

// addressOf returns the address of the agents of a node: agents are on their node's network.
func (a *Agents) addressOf(ctx context.Context, node string) (string, error) {
	agents := a.remembered(node).agents
	if len(agents) == 0 {
		var err error
		if agents, err = a.of(ctx, node, a.asks); err != nil {
			return "", err
		}
	}
	if len(agents) == 0 {
		return "", errors.New("no agent of the node publishes a key")
	}
	return agents[0].address, nil
}

// agent is a pod that proves itself by a key.
type agent struct {
	key     tlskey.Key
	address string
}

// NewAgents returns the Agents that are pods in a namespace with the service account of the pod on
// node that has the key of own.
func NewAgents(pods Pods, node string, own *x509.Certificate) *Agents {
	return &Agents{pods: pods, node: node, key: tlskey.Of(own), known: map[string]found{},
		clients: rate.NewLimiter(bounds.ListRate, bounds.ListBurst), asks: rate.NewLimiter(askRate, askBurst)}
}

// Check returns nil if a certificate, whose key a client has proved, is that of an agent: if its key is
// that of an agent on the node that it names.
func (a *Agents) Check(ctx context.Context, c *x509.Certificate) error {
	node := c.Subject.CommonName
	if len(node) > bounds.Name || len(validation.IsDNS1123Subdomain(node)) > 0 {
		return errors.New("the certificate does not name a node")
	}
	if f := a.remembered(node); time.Since(f.at) < bounds.ListInterval && !has(f.agents, tlskey.Of(c)) {
		return errBusy // clients may present any number of keys
	}
	return a.check(ctx, node, c, a.clients)
}

// check returns nil if a certificate has the key of an agent of node. limit is that of lists.
func (a *Agents) check(ctx context.Context, node string, c *x509.Certificate, limit *rate.Limiter) error {
	key := tlskey.Of(c)
	if has(a.remembered(node).agents, key) {
		return nil
	}
	agents, err := a.of(ctx, node, limit)
	if err != nil {
		return err
	}
	if !has(agents, key) {
		return fmt.Errorf("no pod of an agent on node %q has this key", node)
	}
	return nil
}

func has(agents []agent, key tlskey.Key) bool {
	return slices.ContainsFunc(agents, func(a agent) bool { return a.key == key })
}

// remembered returns what the last list of a node's agents has found, nothing if that is too old.
func (a *Agents) remembered(node string) found {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.known[node]
	if time.Since(f.at) > believedFor {
		return found{}
	}
	return f
}

// of lists the agents of a node, unless limit forbids it.
func (a *Agents) of(ctx context.Context, node string, limit *rate.Limiter) ([]agent, error) {
	if !limit.Allow() {
		return nil, errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	account, err := a.ownAccount(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := a.list(ctx, node)
	if err != nil {
		return nil, err
	}
	var agents []agent
	for i := range pods {
		key, ok := tlskey.OfPod(&pods[i])
		if ok && pods[i].Spec.ServiceAccountName == account && pods[i].Status.PodIP != "" {
			agents = append(agents, agent{key, pods[i].Status.PodIP})
		}
	}
	a.remember(node, agents)
	return agents, nil
}

// remember keeps the agents of a node, in place of those that were listed longest ago if there are too
// many. A node without agents may be none.
func (a *Agents) remember(node string, agents []agent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, node)
	if len(agents) == 0 {
		return
	}
	if len(a.known) >= bounds.KnownNodes {
		delete(a.known, slices.MinFunc(slices.Collect(maps.Keys(a.known)), func(x, y string) int { return a.known[x].at.Compare(a.known[y].at) }))
	}
	a.known[node] = found{agents, time.Now()}
}

// ownAccount returns the service account of this agent's own pod.
func (a *Agents) ownAccount(ctx context.Context) (string, error) {
	a.mu.Lock()
	account := a.account
	a.mu.Unlock()
	if account != "" {
		return account, nil
	}
	pods, err := a.list(ctx, a.node)
	if err != nil {
		return "", err
	}
	for i := range pods {
		if key, ok := tlskey.OfPod(&pods[i]); ok && key == a.key {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.account = pods[i].Spec.ServiceAccountName
			return a.account, nil
		}
	}
	return "", fmt.Errorf("no pod on node %q publishes the key of this agent", a.node)
}

func (a *Agents) list(ctx context.Context, node string) ([]corev1.Pod, error) {
	// From the API server's memory, as agents list: an agent that has just started may be missing.
	list, err := a.pods.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(), ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list the agents of node %q: %w", node, err)
	}
	return list.Items, nil
}
