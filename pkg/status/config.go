package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/pkg/base/tlskey"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
	"sigs.k8s.io/kube-network-policies/pkg/status/gate"
)

// Config is the configuration of a Writer.
type Config struct {
	// Discovery is a client of any group. Events and Leases are those of events.k8s.io and
	// coordination.k8s.io.
	Discovery, Events, Leases rest.Interface
	// Dynamic lists and watches the policies.
	Dynamic dynamic.Interface
	// Kinds are the kinds of policies that get conditions.
	Kinds []Kind
	// Annotations returns those of the annotations of policies and namespaces that Audited
	// and the findings of Kinds depend on. With nil there are none.
	Annotations func(map[string]string) map[string]string
	// Audited reports whether a policy is evaluated but not enforced, by the annotations of
	// the policy and of its namespace, which is nil for cluster-scoped policies. If Audited
	// is nil, no policy is audited.
	Audited func(policy, namespace metav1.Object) bool
	// Enforced collects on which nodes policies are in force. It runs while this Writer holds the
	// Lease. Nil collects nothing.
	Enforced *enforced.Collector
	// Readiness writes the condition of pods with a readiness gate. It runs while this Writer holds
	// the Lease, and shares the rounds of Enforced. It may be nil.
	Readiness *gate.Gate
	// Accepted reports whether a policy without a status gets conditions even if they report no
	// problem, by annotations of the policy and of its namespace that Annotations returns. If it is
	// nil, none does.
	Accepted func(policy, namespace metav1.Object) bool
	// Reports, like Accepted, reports whether conditions say whether the policy is in force.
	Reports func(policy, namespace metav1.Object) bool
	// Beside also runs while this Writer holds the Lease, until its context ends. It may be
	// nil.
	Beside func(context.Context)
	// LeaseNamespace is the namespace of the Lease that elects the writer.
	LeaseNamespace string
	// Identity is unique among all writers. It names the key with which the writer proves itself
	// to agents.
	Identity string
	// Registerer registers the metrics.
	Registerer prometheus.Registerer

	withoutEvents bool // for tests of other writes
}

// LeaseName is the name of the Lease that elects the writer.
const LeaseName = tlskey.Lease

const (
	// resync is the interval at which all policies are checked again.
	resync = 10 * time.Minute
	// rediscover is the interval of discovery for a kind that the server does not
	// serve: one small request of one writer.
	rediscover = 10 * time.Second
	// reprobe is the time until a sink that does not work is probed again.
	reprobe = 10 * time.Minute
	// quietTime is how long a policy must be unchanged before its conditions are written. A
	// client that has just created it may be about to update the returned object, and a write
	// in between would make that update a conflict.
	quietTime = 2 * time.Second
	// minBackoff and maxBackoff bound the wait before a policy is retried.
	minBackoff = time.Second
	maxBackoff = 5 * time.Minute
	// requestTimeout bounds one request, so that no request delays others for long.
	requestTimeout = 30 * time.Second
	// writeRate is the average rate of writes per second, and writeBurst how many are allowed
	// at once after a quiet period. Conditions and Events share both. The rate is low because
	// every agent watches the written policies.
	writeRate  = 5
	writeBurst = 20
	// workers is the maximum number of concurrent requests for one kind: enough for
	// writeRate with a server that takes half a second for each.
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
	require(c.Discovery != nil, "Discovery is nil")
	require(c.Events != nil, "Events is nil")
	require(c.Leases != nil, "Leases is nil")
	require(c.Dynamic != nil, "Dynamic is nil")
	require(c.LeaseNamespace != "", "LeaseNamespace is empty")
	require(c.Identity != "", "Identity is empty")
	require(c.Registerer != nil, "Registerer is nil")
	require(c.Readiness == nil || c.Enforced != nil, "Readiness needs Enforced")
	for i, k := range c.Kinds {
		if err := k.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("Kinds[%d]: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
