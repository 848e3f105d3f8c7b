package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/scale/apiserver"
)

// A change of a pod that may matter to policy is one of twenty: ten times another
// label, five times a pod that goes, and five times one that comes in its place. In
// between, as often as each statusEvery-th change, a status changes that concerns
// no policy.
const (
	cycle       = 20
	deletions   = 5
	additions   = 5
	statusEvery = 4
	// ownEvery is which change in so many is of a pod of the agent's node: in a
	// cluster of a thousand nodes, each has its share.
	ownEvery = 1000
	// nodeEvery is which change goes along with a node's heartbeat: at 1,000 changes
	// a second each of a thousand nodes reports every four minutes.
	nodeEvery = 250
)

// churn changes the pods of a cluster, other pods than those that are probed.
type churn struct {
	server *apiserver.Server
	size   size
	random *rand.Rand
	lives  []int // of each pod, to name the next
	labels []int // versions of each pod's label
	gone   []int // pods that are deleted now
	done   int   // changes that may matter to policy
}

func newChurn(server *apiserver.Server, s size) *churn {
	return &churn{
		server: server, size: s, random: rand.New(rand.NewPCG(1, 2)),
		lives: make([]int, s.pods), labels: make([]int, s.pods),
	}
}

// run makes perSecond changes each second until ctx ends.
func (c *churn) run(ctx context.Context, perSecond int) error {
	began, before := time.Now(), c.done
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		for c.done-before < int(time.Since(began).Seconds()*float64(perSecond)) && ctx.Err() == nil {
			if err := c.change(); err != nil {
				return err
			}
		}
	}
}

// change makes the next change.
func (c *churn) change() error {
	c.done++
	if c.done%statusEvery == 0 {
		if _, err := c.server.Put(heartbeat(c.now(c.living()), time.Now())); err != nil {
			return err
		}
	}
	if others := c.size.nodes() - 1; others > 0 && c.done%nodeEvery == 0 {
		if _, err := c.server.Put(node(2+c.done/nodeEvery%others, time.Now())); err != nil {
			return err
		}
	}
	if c.done%ownEvery == 0 {
		return c.relabel(c.random.IntN(perNode))
	}
	switch turn := c.done % cycle; {
	case turn < deletions:
		return c.remove()
	case turn >= cycle-additions && len(c.gone) > 0:
		return c.add()
	}
	return c.relabel(c.living())
}

// living picks a pod of another node that is there.
func (c *churn) living() int {
	for {
		i := perNode + c.random.IntN(c.size.pods-perNode)
		if c.lives[i] >= 0 {
			return i
		}
	}
}

// now returns pod i as it is.
func (c *churn) now(i int) *corev1.Pod {
	return relabelled(c.size.pod(i, c.lives[i]), "release", fmt.Sprint("r", c.labels[i]))
}

func (c *churn) relabel(i int) error {
	c.labels[i]++
	_, err := c.server.Put(c.now(i))
	return err
}

func (c *churn) remove() error {
	i := c.living()
	_, err := c.server.Delete(c.now(i))
	c.gone = append(c.gone, i)
	c.lives[i] = ^c.lives[i] // negative: not there
	return err
}

func (c *churn) add() error {
	i := c.gone[0]
	c.gone = c.gone[1:]
	c.lives[i] = ^c.lives[i] + 1
	c.labels[i] = 0
	_, err := c.server.Put(c.now(i))
	return err
}
