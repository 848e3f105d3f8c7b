package clusterwatch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/base/spelling"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

const (
	// maxSimilar is how many names of other Nodes a message suggests.
	maxSimilar = 3
	// namesRetry is the pause before a failed list of Node names is repeated.
	namesRetry = time.Minute
)

// Presence says whether the Node of an agent must be in the cluster.
type Presence uint8

const (
	// NotLookedAt accepts a Cluster without the Node.
	NotLookedAt Presence = iota
	// IfAnyNode requires the Node if there are Nodes at all: a folder of manifests may have
	// none.
	IfAnyNode
	// Required requires the Node, as in a cluster.
	Required
)

// ownNode tracks whether the cluster has the Node of this agent. An agent with a wrong node
// name finds no pods and enforces nothing, so it must not appear healthy.
type ownNode struct {
	name     string
	presence Presence
	// names returns the names of all Nodes.
	names func(context.Context) ([]string, error)

	known   chan struct{} // closed once the Node has existed, or is not required
	changed chan struct{} // signals that the Node has appeared or disappeared

	mu     sync.Mutex
	state  nodeState
	closed bool     // known is closed
	others []string // the names of all Nodes, nil while unknown
	err    error    // why the names are unknown
}

// nodeState is the state of the own Node in the source's last report.
type nodeState uint8

const (
	nodeUnlisted nodeState = iota // no report yet
	nodeThere
	nodeMissing
	nodeNotNeeded // there are no Nodes at all, and none is required
)

func newOwnNode(name string, presence Presence, names func(context.Context) ([]string, error)) *ownNode {
	n := &ownNode{name: name, presence: presence, names: names, known: make(chan struct{}), changed: make(chan struct{}, 1)}
	if presence == NotLookedAt {
		n.close()
	}
	return n
}

// note is called whenever Nodes have been listed or have changed.
func (n *ownNode) note(there bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.presence == NotLookedAt {
		return
	}
	state := nodeMissing
	if there {
		state = nodeThere
	}
	if state == n.state || state == nodeMissing && n.state == nodeNotNeeded {
		return
	}
	n.state, n.others = state, nil
	if there {
		n.close()
	}
	runner.Signal(n.changed)
}

// close closes known. It is called with the mutex held.
func (n *ownNode) close() {
	if !n.closed {
		n.closed = true
		close(n.known)
	}
}

// run calls changed after the Node has appeared or disappeared. If the Node is missing it
// first reads the names of all Nodes, for hint.
func (n *ownNode) run(ctx context.Context, changed func()) {
	for {
		var retry <-chan time.Time
		if n.lacksNames() {
			if !n.noteNames(n.names(ctx)) {
				retry = time.After(namesRetry)
			}
			changed()
		}
		select {
		case <-n.changed:
		case <-retry:
			continue
		case <-ctx.Done():
			return
		}
		if !n.lacksNames() {
			changed()
		}
	}
}

func (n *ownNode) lacksNames() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state == nodeMissing && n.others == nil
}

// noteNames records the names or the error, and reports whether the names are known.
func (n *ownNode) noteNames(names []string, err error) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
	if err != nil {
		return false
	}
	n.others = append([]string{}, names...)
	if len(names) == 0 && n.presence == IfAnyNode && n.state == nodeMissing {
		n.state = nodeNotNeeded
		n.close()
	}
	return true
}

// healthy returns an error that names the missing Node, and Nodes with similar names.
func (n *ownNode) healthy() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != nodeMissing || n.presence == IfAnyNode && n.others == nil {
		return nil
	}
	if n.closed {
		return fmt.Errorf("Node %q is no longer in the cluster: what is known of its pods stays in force; %s", n.name, n.hint())
	}
	return fmt.Errorf("no Node %q in the cluster, so no pod of this machine is known and no policy is enforced: --hostname-override must be the name of its Node; %s", n.name, n.hint())
}

// hint is called with the mutex held.
func (n *ownNode) hint() string {
	switch {
	case n.others == nil && n.err != nil:
		return fmt.Sprintf("the names of the Nodes cannot be read: %v", n.err)
	case n.others == nil:
		return "the names of the Nodes are not read yet"
	case len(n.others) == 0:
		return "the cluster has no Nodes"
	}
	similar := similarNames(n.name, n.others)
	if len(similar) == 0 {
		return fmt.Sprintf("none of its %d Nodes has a similar name", len(n.others))
	}
	return "Nodes with similar names: " + strings.Join(similar, ", ")
}

// similarNames returns up to maxSimilar of names, quoted, that name may be a mistake for:
// first those that differ only in the domain, then those that differ in a few letters.
func similarNames(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var found []candidate
	host, _, _ := strings.Cut(name, ".")
	for _, other := range names {
		otherHost, _, _ := strings.Cut(other, ".")
		limit := max(2, len(name)/4)
		switch {
		case host == otherHost:
			found = append(found, candidate{other, 0})
		case max(len(name)-len(other), len(other)-len(name)) > limit:
		default:
			if d := spelling.Distance(name, other); d <= limit {
				found = append(found, candidate{other, d})
			}
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.name, b.name))
	})
	var similar []string
	for _, c := range found[:min(len(found), maxSimilar)] {
		similar = append(similar, fmt.Sprintf("%q", c.name))
	}
	return similar
}

// nodeNames returns the names of all Nodes, from the mirror if it watches all.
func (c *Cache) nodeNames(ctx context.Context) ([]string, error) {
	if len(c.cfg.Kinds) == 0 {
		return listNames(ctx, c.source.Objects(compile.KindNode))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for key := range c.nodes().objects {
		names = append(names, key[1])
	}
	return names, nil
}

// listNames lists objects page by page and keeps only their names.
func listNames(ctx context.Context, lw cache.ListerWatcher) (names []string, err error) {
	list := pager.New(cache.ToListerWatcherWithContext(lw).ListWithContext)
	err = list.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		item, err := meta.Accessor(o)
		if err == nil {
			names = append(names, item.GetName())
		}
		return err
	})
	return names, err
}

// nodes returns the mirror of nodes.
func (c *Cache) nodes() *mirror {
	i := slices.IndexFunc(c.mirrors, func(m *mirror) bool { return m.kind == compile.KindNode })
	return c.mirrors[i]
}
