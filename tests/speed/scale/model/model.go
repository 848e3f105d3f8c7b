// Package model draws realistic clusters for measurements: namespaces of equal or very
// unequal size, applications with replicas on random nodes, typical policies, and the
// changes of rollouts, Jobs and autoscaling. The same Config always draws the same cluster.
//
// It is a model: its numbers are assumptions, which the fields and constants document.
package model

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

const (
	// replicas is the number of pods of an application. Ten consecutive pods of a namespace
	// are one.
	replicas = 10
	// largeNamespace is the number of pods from which a namespace is large.
	largeNamespace = 1000
)

// The last namespaces are those of the cluster's own services, whatever their number of
// pods.
const (
	dnsPods, ingressPods, monitoringPods = 20, 20, 30
	ownServices                          = 3
)

// Config is what a cluster is drawn from.
type Config struct {
	Nodes, Pods, Namespaces int
	// Zipf makes the sizes of namespaces proportional to 1, 1/2, 1/3, …, instead of equal.
	Zipf bool
	// Everyone is the percentage of namespaces with an ingress rule for all pods of all
	// namespaces.
	Everyone int
	// ByLabel makes each application of a large namespace (over 1,000 pods) communicate with
	// two other applications, by their labels, instead of with all pods of the namespace.
	ByLabel bool
}

// Large is the cluster of docs/scalability.md.
var Large = Config{Nodes: 5000, Pods: 150_000, Namespaces: 2000}

// String returns the configuration as part of a name.
func (c Config) String() string {
	sizes := "equal"
	if c.Zipf {
		sizes = "zipf"
	}
	if c.ByLabel {
		sizes += "-by-label"
	}
	return fmt.Sprintf("%s/everyone=%d%%/pods=%d", sizes, c.Everyone, c.Pods)
}

// Cluster is the state of a cluster. Only one goroutine may use it.
type Cluster struct {
	Config
	random *rand.Rand
	names  []string // of namespaces
	apps   []app
	first  []int    // index of each namespace's first app, and the number of apps
	used   [][]bool // addresses in use, by node
	lives  int      // number of pods created so far
	active [][]step // remaining steps of current actions
	added  []*app   // with an additional replica, oldest first
}

// app is an application.
type app struct {
	namespace  int
	label      string
	generation int   // of its template
	pods       []Pod // with addresses, oldest first
}

// Draw draws a cluster.
func Draw(cfg Config) *Cluster {
	c := &Cluster{Config: cfg, random: rand.New(rand.NewPCG(18, 0)), used: make([][]bool, cfg.Nodes)}
	for i, size := range cfg.sizes() {
		c.names = append(c.names, cluster.NamespaceName(i))
		c.first = append(c.first, len(c.apps))
		for ; size > 0; size -= replicas {
			a := app{namespace: i, label: c.appLabel(i, len(c.apps)-c.first[i])}
			for range min(size, replicas) {
				p := c.newPod(&a)
				c.schedule(&p)
				p.Stage = Running
				a.pods = append(a.pods, p)
			}
			c.apps = append(c.apps, a)
		}
	}
	c.first = append(c.first, len(c.apps))
	return c
}

// sizes returns the number of pods of each namespace.
func (cfg Config) sizes() []int {
	ordinary := cfg.Namespaces - ownServices
	weight := func(i int) float64 {
		if cfg.Zipf {
			return 1 / float64(i+1)
		}
		return 1
	}
	sum := 0.0
	for i := range ordinary {
		sum += weight(i)
	}
	pods := cfg.Pods - dnsPods - ingressPods - monitoringPods
	sizes, before := make([]int, ordinary), 0.0
	for i := range sizes {
		next := before + weight(i)/sum*float64(pods)
		sizes[i] = int(next+0.5) - int(before+0.5) // rounding keeps the sum
		before = next
	}
	return append(sizes, dnsPods, ingressPods, monitoringPods)
}

// NamespaceName returns the name of namespace i.
func (c *Cluster) NamespaceName(i int) string { return c.names[i] }

// The namespaces of the cluster's own services.
func (cfg Config) dns() int        { return cfg.Namespaces - ownServices }
func (cfg Config) ingress() int    { return cfg.Namespaces - ownServices + 1 }
func (cfg Config) monitoring() int { return cfg.Namespaces - ownServices + 2 }

// Pods yields all pods.
func (c *Cluster) Pods(yield func(Pod) bool) {
	for _, a := range c.apps {
		for _, p := range a.pods {
			if !yield(p) {
				return
			}
		}
	}
}

// Count returns the number of pods of c that a watch selects.
func (c *Cluster) Count(w Watch) (n int) {
	apps := c.apps
	if w.Namespace != "" {
		i := slices.Index(c.names, w.Namespace)
		apps = apps[c.first[i]:c.first[i+1]]
	}
	for _, a := range apps {
		switch {
		case len(a.pods) == 0:
		case w.Node == "":
			if c.Has(w, a.pods[0]) { // its replicas have the same labels in policies
				n += len(a.pods)
			}
		default:
			for _, p := range a.pods {
				if c.Has(w, p) {
					n++
				}
			}
		}
	}
	return n
}

// newPod returns a pod of an application that is not scheduled yet.
func (c *Cluster) newPod(a *app) Pod {
	c.lives++
	return Pod{Namespace: a.namespace, app: a.label, generation: a.generation, number: c.lives, Node: -1, Stage: Created}
}

// appLabel returns the label of application n of a namespace.
func (c *Cluster) appLabel(namespace, n int) string {
	switch namespace {
	case c.dns():
		return "kube-dns"
	case c.ingress():
		return "ingress-controller"
	case c.monitoring():
		return "prometheus"
	}
	return fmt.Sprint("app-", n)
}

const (
	// firstHost and hosts are the addresses of a node's range that pods get.
	firstHost, hosts = 10, 200
	// maxNodes is the number of node ranges in 100.64.0.0/10.
	maxNodes = 1 << 14
)

// Range returns the pod range of a node.
func Range(node int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(64 + node>>8%64), byte(node), 0}), 24)
}

// schedule puts a pod on a random node and gives it an address there.
func (c *Cluster) schedule(p *Pod) {
	p.Node = c.random.IntN(min(c.Nodes, maxNodes))
	if c.used[p.Node] == nil {
		c.used[p.Node] = make([]bool, hosts)
	}
	used := c.used[p.Node]
	host := p.number % hosts
	for used[host] {
		host = (host + 1) % hosts
	}
	used[host] = true
	p.host, p.Stage = host, Scheduled
}

// free releases the address of a pod.
func (c *Cluster) free(p Pod) { c.used[p.Node][p.host] = false }
