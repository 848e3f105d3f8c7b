package policycache

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

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/spelling"
)

const (
	// maxSimilar is how many names of other Nodes a message has.
	maxSimilar = 3
	// namesPage is how many Nodes one request for their names lists, and namesRetry the time
	// after which a failed one is repeated.
	namesPage  = 500
	namesRetry = time.Minute
)

// Presence is whether the Node of an agent must be in the cluster.
type Presence uint8

const (
	// NotLookedAt takes a Cluster without it as it is.
	NotLookedAt Presence = iota
	// AmongOthers is for a folder, which need not have any Node.
	AmongOthers
	// Required is for a cluster.
	Required
)

// ownNode knows whether the cluster has the Node of this agent. An agent whose node name is
// that of no Node finds no pods and enforces nothing, so it must not look like one that works.
type ownNode struct {
	name     string
	presence Presence
	// names returns the names of all Nodes.
	names func(context.Context) ([]string, error)

	known   chan struct{} // closed once the Node was there, or need not be
	changed chan struct{} // takes a value when the Node has come or gone

	mu      sync.Mutex
	state   nodeState
	settled bool     // known is closed
	others  []string // the names of all Nodes, nil while they are not known
	err     error    // why they are not known
}

// nodeState is what the source said last of the own Node.
type nodeState uint8

const (
	nodeUnlisted nodeState = iota // nothing yet
	nodeThere
	nodeMissing
	nodeNotNeeded // there are no Nodes at all, and none is required
)

func newOwnNode(name string, presence Presence, names func(context.Context) ([]string, error)) *ownNode {
	n := &ownNode{name: name, presence: presence, names: names, known: make(chan struct{}), changed: make(chan struct{}, 1)}
	if presence == NotLookedAt {
		n.settle()
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
	if n.state, n.others = state, nil; there {
		n.settle()
	}
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// settle is called with the mutex held.
func (n *ownNode) settle() {
	if !n.settled {
		n.settled = true
		close(n.known)
	}
}

// run calls changed after the Node has come or gone. Before that it reads the names of all
// Nodes if it is missing.
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

// noteNames reports whether the names are known.
func (n *ownNode) noteNames(names []string, err error) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err = err; err != nil {
		return false
	}
	n.others = append([]string{}, names...)
	if len(names) == 0 && n.presence == AmongOthers && n.state == nodeMissing {
		n.state = nodeNotNeeded
		n.settle()
	}
	return true
}

// healthy returns an error that says which Node is missing, and which ones have similar
// names.
func (n *ownNode) healthy() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state != nodeMissing || n.presence == AmongOthers && n.others == nil {
		return nil
	}
	if n.settled {
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

// similarNames returns up to maxSimilar of names, quoted, that may be meant by name: first
// those that differ in the domain only, then those that differ in a few letters.
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

// nodeNames returns the names of all Nodes: those of the mirror if it has all of them.
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

// listNames lists objects page by page, and keeps their names only.
func listNames(ctx context.Context, lw cache.ListerWatcher) ([]string, error) {
	lister := cache.ToListerWatcherWithContext(lw)
	var names []string
	for options := (metav1.ListOptions{Limit: namesPage}); ; {
		list, err := lister.ListWithContext(ctx, options)
		if err != nil {
			return nil, err
		}
		page, err := meta.ListAccessor(list)
		if err != nil {
			return nil, err
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			item, err := meta.Accessor(o)
			if err == nil {
				names = append(names, item.GetName())
			}
			return err
		}); err != nil {
			return nil, err
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return names, nil
		}
	}
}

// nodes returns the mirror of nodes.
func (c *Cache) nodes() *mirror {
	i := slices.IndexFunc(c.mirrors, func(m *mirror) bool { return m.kind == compile.KindNode })
	return c.mirrors[i]
}

// useNodes compiles rules that name nodes as such, or as rules that cannot be read: these fail
// closed, and are findings. It returns how many policies change. It is called with the mutex held.
func (c *Cache) useNodes(v view, use bool) (changed int) {
	if c.withoutNodes == !use {
		return 0
	}
	c.withoutNodes = !use
	features := c.cfg.Features
	features.Nodes = features.Nodes && use
	v.SetFeatures(features)
	for _, m := range c.mirrors {
		if !m.kind.IsPolicy() {
			continue
		}
		for _, o := range m.objects {
			if v.Set(o) {
				changed++
			}
		}
	}
	return changed
}
