package clusterwatch

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// rightsPatience is how long the first snapshot waits for the right to read a kind that it can do
// without.
const rightsPatience = 5 * time.Second

// dispensable reports whether a cluster can be enforced without the objects of a kind: rules that
// refer to them then fail closed. Without namespaces, pods or policies nothing is known.
func dispensable(kind *compile.Kind) bool {
	return kind == compile.KindNode || kind == compile.KindCIDRGroup
}

// waitListed returns true when all kinds have been listed and the own Node is known, or false
// when ctx has ended.
func (c *Cache) waitListed(ctx context.Context) bool {
	for _, m := range c.mirrors {
		if !c.waitFor(ctx, m) {
			return false
		}
	}
	if c.isWithout(compile.KindNode) {
		return true
	}
	select {
	case <-c.ownNode.known:
		return true
	case <-ctx.Done():
		return false
	}
}

// waitFor waits until m is listed, or until it is certain that the agent may not read a kind that is
// dispensable. It returns false when ctx has ended.
func (c *Cache) waitFor(ctx context.Context, m *mirror) bool {
	ticker := time.NewTicker(rightsPatience)
	defer ticker.Stop()
	for {
		select {
		case <-m.listed:
			return true
		case <-ctx.Done():
			return false
		case <-ticker.C:
			if dispensable(m.kind) && m.failures.forbidden() {
				c.change(nil, func(v view) int { return c.use(v, m.kind, false) })
				klog.FromContext(ctx).Error(m.failures.notListed(), "A kind cannot be read: rules that refer to its objects fail closed, and all other rules are enforced", "kind", m.kind.Name)
				return true
			}
		}
	}
}

// use records whether the objects of a kind are known, and returns how many policies that changes:
// without nodes, rules with node peers fail closed and are findings. It is called with the mutex
// held.
func (c *Cache) use(v view, kind *compile.Kind, known bool) (changed int) {
	if c.without[kind] == !known {
		return 0
	}
	c.without[kind] = !known
	if kind != compile.KindNode {
		return 0 // a group that is missing fails closed in any case
	}
	features := c.cfg.Features
	features.Nodes = features.Nodes && known
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

func (c *Cache) isWithout(kind *compile.Kind) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.without[kind]
}

// complete returns an error that names unknown objects that policies need.
func (c *Cache) complete() error {
	var errs []error
	for _, m := range c.mirrors {
		if c.isWithout(m.kind) {
			errs = append(errs, m.failures.notListed())
		}
	}
	return errors.Join(errs...)
}

// Listed returns an error that names the lists that the first snapshot still waits for. It is
// nil if the saved state is enforced.
func (c *Cache) Listed() error {
	var errs []error
	for _, m := range c.mirrors {
		select {
		case <-m.listed:
		default:
			errs = append(errs, m.failures.notListed())
		}
	}
	return errors.Join(errs...)
}
