package model

// Changes come from concurrent actions: rollouts, which replace each pod of an application
// by one with another template; Jobs, whose pods are created and deleted; and autoscaling,
// which adds replicas to applications and removes them again.
//
// A pod's life has five events: it is created, scheduled, gets an address, terminates and
// is deleted. Half of all events are those of rollouts, and a quarter each of Jobs and
// autoscaling. Applications are drawn with equal probability, so namespaces change in
// proportion to their size.
const (
	// atOnce is the number of concurrent actions.
	atOnce  = 50
	jobPods = 3
	// maxAdded is the maximum number of replicas that autoscaling adds.
	maxAdded = 500

	// The average number of events of an action. Actions are drawn by their share of events
	// divided by this number.
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
	c.active[i] = steps[1:]
	if len(steps) == 1 {
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
		steps = append(steps, c.startPod(a)...)
		steps = append(steps, c.stopPod(a)...)
	}
	return steps
}

func (c *Cluster) job(namespace int) (steps []step) {
	a := &app{namespace: namespace, label: "job"}
	for range jobPods {
		steps = append(steps, c.startPod(a)...)
	}
	for range jobPods {
		steps = append(steps, c.stopPod(a)...)
	}
	return steps
}

// scale adds a replica to an application, or removes one from the application that got the
// first.
func (c *Cluster) scale(a *app) []step {
	if len(c.added) < maxAdded {
		c.added = append(c.added, a)
		return c.startPod(a)
	}
	a, c.added = c.added[0], c.added[1:]
	return c.stopPod(a)
}

// startPod returns the steps of a new pod until it has an address.
func (c *Cluster) startPod(a *app) []step {
	var p Pod
	return []step{
		func() Pod { p = c.newPod(a); return p },
		func() Pod { c.schedule(&p); return p },
		func() Pod { p.Stage = Running; a.pods = append(a.pods, p); return p },
	}
}

// stopPod returns the steps that end the application's oldest pod at that time.
func (c *Cluster) stopPod(a *app) []step {
	var p Pod
	return []step{
		func() Pod { p, a.pods = a.pods[0], a.pods[1:]; p.Stage = Terminating; return p },
		func() Pod { p.Stage = Deleted; c.free(p); return p },
	}
}
