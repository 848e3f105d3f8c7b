package model

// Changes come from actions that go on at the same time: rollouts, which replace each pod of an
// application by one of another template; Jobs, whose pods come and go; and autoscaling, which
// adds replicas to applications, or removes what it has added.
//
// A pod's life has five events: it is created, scheduled, gets an address, terminates and is
// deleted. Half of all events are those of rollouts, and a quarter each of Jobs and autoscaling.
// Applications are drawn evenly, so that namespaces change in proportion to their size.
const (
	// atOnce is how many actions go on at the same time.
	atOnce  = 50
	jobPods = 3
	// maxAdded is how many replicas autoscaling has added at most.
	maxAdded = 500

	// The events of an action, on average. Actions are drawn by shares of events over these.
	rolloutEvents, jobEvents, scaleEvents = 5.0 * replicas, 5.0 * jobPods, 2.5
)

// step makes an event and returns the pod after it.
type step func() Pod

// Next makes the next change and returns the pod after it.
func (c *Cluster) Next() Pod {
	for len(c.active) < atOnce {
		c.active = append(c.active, c.begin())
	}
	i := c.random.IntN(len(c.active))
	steps := c.active[i]
	p := steps[0]()
	if c.active[i] = steps[1:]; len(steps) == 1 {
		c.active = append(c.active[:i], c.active[i+1:]...)
	}
	return p
}

// begin returns the steps of a new action.
func (c *Cluster) begin() []step {
	const rollouts, jobs, scalings = 2 / rolloutEvents, 1 / jobEvents, 1 / scaleEvents
	a := &c.apps[c.random.IntN(len(c.apps))]
	switch draw := c.random.Float64() * (rollouts + jobs + scalings); {
	case draw < rollouts:
		return c.rollout(a)
	case draw < rollouts+jobs:
		return c.job(a.namespace)
	}
	return c.scale(a)
}

func (c *Cluster) rollout(a *app) (steps []step) {
	a.generation++
	for range a.pods {
		steps = append(steps, c.up(a)...)
		steps = append(steps, c.down(a)...)
	}
	return steps
}

func (c *Cluster) job(namespace int) (steps []step) {
	a := &app{namespace: namespace, label: "job"}
	for range jobPods {
		steps = append(steps, c.up(a)...)
	}
	for range jobPods {
		steps = append(steps, c.down(a)...)
	}
	return steps
}

// scale adds a replica to an application, or removes one where the first was added.
func (c *Cluster) scale(a *app) []step {
	if len(c.added) < maxAdded {
		c.added = append(c.added, a)
		return c.up(a)
	}
	a, c.added = c.added[0], c.added[1:]
	return c.down(a)
}

// up is the life of a pod until it has an address.
func (c *Cluster) up(a *app) []step {
	var p Pod
	return []step{
		func() Pod { p = c.newPod(a); return p },
		func() Pod { c.schedule(&p); return p },
		func() Pod { p.Stage = Running; a.pods = append(a.pods, p); return p },
	}
}

// down is the end of the oldest pod that there is then.
func (c *Cluster) down(a *app) []step {
	var p Pod
	return []step{
		func() Pod { p, a.pods = a.pods[0], a.pods[1:]; p.Stage = Terminating; return p },
		func() Pod { p.Stage = Deleted; c.free(p); return p },
	}
}
