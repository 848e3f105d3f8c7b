package status

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Config is all that a writer is told.
type Config struct {
	// Client reads and writes Leases and Events, and asks what is served.
	Client kubernetes.Interface
	// Dynamic lists and watches the policies.
	Dynamic dynamic.Interface
	// Kinds are the kinds of policies to tell about.
	Kinds []Kind
	// QPS is how many writes there may be in a second, over time; Burst how many
	// at once. Conditions and Events share it.
	QPS   float64
	Burst int
	// Events sends a Warning Event for each problem of a policy whose conditions
	// cannot go to its status.
	Events bool
	// LeaseNamespace is where the Lease lives that decides who writes.
	LeaseNamespace string
	// Identity tells this writer from all others.
	Identity string
	// Registerer takes the metrics.
	Registerer prometheus.Registerer
}

// LeaseName is the name of the Lease that decides who writes.
const LeaseName = FieldManager

const (
	// resync is how often every policy is looked at again.
	resync = 10 * time.Minute
	// rediscover is how often the server is asked for a kind that it does not
	// serve: one small request of one writer.
	rediscover = 10 * time.Second
	// reprobe is how long a sink that does not work is left alone.
	reprobe = 10 * time.Minute
	// settleTime is how long a policy has to be left alone before its conditions
	// are written. Who has just written it may be about to update what he got back:
	// a write between the two would make that a conflict.
	settleTime = 2 * time.Second
	// minBackoff and maxBackoff bound the wait before a policy is tried again.
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
	// requestTimeout bounds one request, so that none holds up the others.
	requestTimeout = 30 * time.Second
	// workers is how many requests are under way at most: a server that takes
	// half a second for each can still be written to at the default rate.
	workers = 4
)

// Validate names every field that cannot work.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, fault string) {
		if !ok {
			errs = append(errs, errors.New(fault))
		}
	}
	need(c.Client != nil, "Client is nil")
	need(c.Dynamic != nil, "Dynamic is nil")
	need(c.QPS > 0, "QPS is not positive")
	need(c.Burst > 0, "Burst is not positive")
	need(c.LeaseNamespace != "", "LeaseNamespace is empty")
	need(c.Identity != "", "Identity is empty")
	need(c.Registerer != nil, "Registerer is nil")
	for i, k := range c.Kinds {
		if err := k.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("Kinds[%d]: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
