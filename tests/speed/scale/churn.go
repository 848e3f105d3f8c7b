package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
)

// Of twenty changes of pods that may affect policies, ten change a label, five delete a
// pod, and five create its replacement. Each statusEvery-th change also changes the status
// of a pod, which affects no policy.
const (
	cycle       = 20
	deletions   = 5
	additions   = 5
	statusEvery = 4
	// Each ownEvery-th change is of a pod on the agent's node, its share in a cluster of a
	// thousand nodes.
	ownEvery = 1000
	// Each nodeEvery-th change comes with a node's heartbeat. At 1,000 changes per second each
	// of a thousand nodes reports every four minutes.
	nodeEvery = 250
)

// churn changes the pods of a cluster, except those that are probed.
type churn struct {
	server  *apiserver.Server
	size    size
	random  *rand.Rand
	lives   []int // of each pod, to name the next one
	labels  []int // versions of each pod's label
	deleted []int // pods that are currently deleted
	done    int   // changes that may affect policies
}

func newChurn(server *apiserver.Server, s size) *churn {
	return &churn{
		server: server, size: s, random: rand.New(rand.NewPCG(1, 2)),
		lives: make([]int, s.pods), labels: make([]int, s.pods),
	}
}

// keepChanging makes perSecond changes each second until ctx ends.
func keepChanging(ctx context.Context, c *churn, perSecond int) error {
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
	if otherNodes := c.size.nodes() - 1; otherNodes > 0 && c.done%nodeEvery == 0 {
		if _, err := c.server.Put(node(2+c.done/nodeEvery%otherNodes, time.Now())); err != nil {
			return err
		}
	}
	if c.done%ownEvery == 0 {
		return c.relabel(c.random.IntN(perNode))
	}
	switch turn := c.done % cycle; {
	case turn < deletions:
		return c.remove()
	case turn >= cycle-additions && len(c.deleted) > 0:
		return c.add()
	}
	return c.relabel(c.living())
}

// living picks an existing pod of another node.
func (c *churn) living() int {
	for {
		i := perNode + c.random.IntN(c.size.pods-perNode)
		if c.lives[i] >= 0 {
			return i
		}
	}
}

// now returns the current state of pod i.
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
	c.deleted = append(c.deleted, i)
	c.lives[i] = ^c.lives[i] // negative: deleted
	return err
}

func (c *churn) add() error {
	i := c.deleted[0]
	c.deleted = c.deleted[1:]
	c.lives[i] = ^c.lives[i] + 1
	c.labels[i] = 0
	_, err := c.server.Put(c.now(i))
	return err
}
