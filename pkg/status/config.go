package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/pkg/denials"
)

// Config is the configuration of a Writer.
type Config struct {
	// Client reads and writes Leases and Events, and is used for discovery.
	Client kubernetes.Interface
	// Dynamic lists and watches the policies.
	Dynamic dynamic.Interface
	// Kinds are the kinds of policies that get conditions.
	Kinds []Kind
	// QPS is the average rate of writes per second, Burst how many may be made at
	// once. Conditions and Events share both.
	QPS   float64
	Burst int
	// Events creates a Warning Event for each problem of a policy whose conditions
	// cannot be stored in its status.
	Events bool
	// Enforcement is the annotation of policies and namespaces that says whether policies
	// are enforced. It is kept for Audited.
	Enforcement string
	// Audited reports whether a policy is evaluated and not enforced, by the annotations
	// of the policy and of its namespace, nil if it has none. With nil no policy is.
	Audited func(policy, namespace metav1.Object) bool
	// Denials says what policies denied lately. It runs while this Writer holds the Lease.
	// Nil says nothing.
	Denials *denials.Collector
	// Beside runs while this Writer holds the Lease, until its context ends. Nil is nothing.
	Beside func(context.Context)
	// LeaseNamespace is the namespace of the Lease that elects the writer.
	LeaseNamespace string
	// Identity is unique among all writers.
	Identity string
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// LeaseName is the name of the Lease that elects the writer.
const LeaseName = FieldManager

const (
	// resync is the interval at which every policy is checked again.
	resync = 10 * time.Minute
	// rediscover is the interval of discovery for a kind that the server does not
	// serve: one small request of one writer.
	rediscover = 10 * time.Second
	// reprobe is the time until a sink that does not work is probed again.
	reprobe = 10 * time.Minute
	// settleTime is how long a policy must be unchanged before its conditions are
	// written. A client that has just created it may be about to update the object
	// that it got back, and a write in between would make that update a conflict.
	settleTime = 2 * time.Second
	// minBackoff and maxBackoff bound the wait before a policy is retried.
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
	// requestTimeout bounds one request, so that none delays the others for long.
	requestTimeout = 30 * time.Second
	// workers is the maximum number of concurrent requests for one kind: enough for
	// the default rate with a server that takes half a second for each.
	workers = 4
)

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	require := func(ok bool, fault string) {
		if !ok {
			errs = append(errs, errors.New(fault))
		}
	}
	require(c.Client != nil, "Client is nil")
	require(c.Dynamic != nil, "Dynamic is nil")
	require(c.QPS > 0, "QPS is not positive")
	require(c.Burst > 0, "Burst is not positive")
	require(c.LeaseNamespace != "", "LeaseNamespace is empty")
	require(c.Identity != "", "Identity is empty")
	require(c.Registerer != nil, "Registerer is nil")
	for i, k := range c.Kinds {
		if err := k.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("Kinds[%d]: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
