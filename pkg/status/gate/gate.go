package gate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/base/runner"
	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
	"sigs.k8s.io/kube-network-policies/pkg/status/enforced"
)

// The conditions that a pod can name in spec.readinessGates. They mean the same.
const (
	// NetworkReady is the condition of KEP-5709 (kubernetes/enhancements pull request 5995, as of
	// commit bf84b3fee108), which has three candidates for its type. This is the first, one type for
	// each plugin. The others are one type for all plugins: it would also have to say that the network
	// is ready, which this program cannot know.
	NetworkReady corev1.PodConditionType = "kube-network-policies.x-k8s.io/network-ready"
	// PoliciesEnforced is the name from before the proposal. It is deprecated: it goes one release
	// after NetworkReady needs no feature gate.
	PoliciesEnforced corev1.PodConditionType = "kube-network-policies.x-k8s.io/policies-enforced"
)

// The reasons of the condition. Only with Pending it is not true.
const (
	EnforcedOnAllNodes = "EnforcedOnAllNodes"
	EnforcedOnOwnNode  = "EnforcedOnOwnNode"
	HostNetwork        = "HostNetwork"
	Pending            = "Pending"
)

const (
	// othersPatience is how long a pod waits for other nodes: one that hangs must not stop rollouts.
	othersPatience = 30 * time.Second
	// reasonAfter is how long a pod waits until its condition says for what. Most are ready earlier, with
	// one write.
	reasonAfter = 5 * time.Second
	// tick is how often pods that wait are looked at again, and settleTime how soon after one has got
	// its addresses: others follow.
	tick       = time.Second
	settleTime = 200 * time.Millisecond
	// Agents are asked every hastyInterval for pods that have waited for less than hasty, and every
	// slowInterval for those that wait longer. For none, calm is longer than agents are left alone.
	hasty         = time.Minute
	hastyInterval = time.Second
	slowInterval  = 10 * time.Second
	calm          = time.Hour
	// writeRate bounds the writes of conditions that become true, each second, and reasonRate those that
	// do not, so that the first do not wait for them.
	writeRate, writeBurst   = 50, 100
	reasonRate, reasonBurst = 5, 20
	writesAtOnce            = 8
	requestTimeout          = 5 * time.Second
	retryInterval           = 10 * time.Second
)

// Config configures a Gate.
type Config struct {
	// Pods returns the pods of a namespace, or of all.
	Pods func(namespace string) Pods
	// Rounds asks the agents. It has to run while the Gate runs, and shares its rounds with it alone.
	Rounds *enforced.Collector
	// Conditions are those to write, each to the pods that name it.
	Conditions []corev1.PodConditionType
	// FieldManager is the field manager of the patches.
	FieldManager string
	// Registerer registers the metrics.
	Registerer prometheus.Registerer
}

// Pods lists and watches pods, and patches their status.
type Pods interface {
	apiclient.Source[*corev1.PodList]
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, o metav1.PatchOptions, subresources ...string) (*corev1.Pod, error)
}

// Validate returns an error that names every invalid field.
func (c Config) Validate() error {
	var errs []error
	require := func(ok bool, fault string) {
		if !ok {
			errs = append(errs, errors.New(fault))
		}
	}
	require(c.Pods != nil, "Pods is nil")
	require(c.Rounds != nil, "Rounds is nil")
	require(len(c.Conditions) > 0, "Conditions is empty")
	require(c.FieldManager != "", "FieldManager is empty")
	require(c.Registerer != nil, "Registerer is nil")
	return errors.Join(errs...)
}

// Known returns the newest resource versions of policies and namespaces, by kind, that a pod's node has
// to enforce, or an error while they are not known.
type Known func() (map[string]string, error)

// Gate writes the conditions.
type Gate struct {
	cfg             Config
	written         *prometheus.CounterVec
	writes, reasons *rate.Limiter
	errorLog        rate.Sometimes
	poked           chan struct{} // signals pods that have got addresses, or a round

	mu    sync.Mutex
	pods  map[types.NamespacedName]*pod
	round enforced.Round // the last one
}

// New returns a Gate. It starts nothing.
func New(cfg Config) (*Gate, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("readiness gate config: %w", err)
	}
	g := &Gate{
		cfg:      cfg,
		writes:   rate.NewLimiter(writeRate, writeBurst),
		reasons:  rate.NewLimiter(reasonRate, reasonBurst),
		errorLog: rate.Sometimes{First: 1, Interval: time.Minute},
		poked:    make(chan struct{}, 1),
		pods:     map[types.NamespacedName]*pod{},
	}
	g.written = newWrites(cfg.Registerer, "Pod", resultSuccess, resultGone, resultError)
	cfg.Rounds.Share(g.take)
	return g, nil
}

// Run writes the conditions until ctx ends. It may then be called again.
func (g *Gate) Run(ctx context.Context, known Known) {
	ctx = klog.NewContext(ctx, klog.LoggerWithName(klog.FromContext(ctx), "readiness"))
	g.mu.Lock()
	g.pods, g.round = map[types.NamespacedName]*pod{}, enforced.Round{}
	g.mu.Unlock()
	var watch sync.WaitGroup
	watch.Go(func() { g.watch(ctx) })
	defer watch.Wait()
	defer func() { // those of the next leader
		g.mu.Lock()
		defer g.mu.Unlock()
		g.pods = map[types.NamespacedName]*pod{}
	}()
	klog.FromContext(ctx).Info("Making pods ready once policies are in force for them", "readinessGates", g.cfg.Conditions)
	for {
		var again <-chan time.Time
		if g.waiting() > 0 {
			again = time.After(tick)
		}
		select {
		case <-ctx.Done():
			return
		case <-g.poked:
			select {
			case <-ctx.Done():
				return
			case <-time.After(settleTime):
			}
		case <-again:
		}
		g.step(ctx, known)
	}
}

// take takes a round, for enforced.Collector.Share.
func (g *Gate) take(r enforced.Round) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.round = r
	again := time.Duration(calm)
	for _, p := range g.pods {
		switch {
		case !p.waits():
		case time.Since(p.since) < hasty:
			again = min(again, hastyInterval)
		default:
			again = min(again, slowInterval)
		}
	}
	if again < calm {
		runner.Signal(g.poked)
	}
	return again
}

// waiting returns how many pods have addresses and are not ready yet because of the gate.
func (g *Gate) waiting() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.pods {
		if p.waits() {
			n++
		}
	}
	return n
}

// step writes what has become known.
func (g *Gate) step(ctx context.Context, known Known) {
	if g.waiting() == 0 {
		return
	}
	versions, err := known()
	now := time.Now()
	g.mu.Lock()
	asks := false
	for _, p := range g.pods {
		if p.waits() && !p.hostNetwork && err == nil && p.take(versions, now) {
			asks = true
		}
	}
	due := g.due(err, now)
	g.mu.Unlock()
	if asks {
		g.cfg.Rounds.Soon()
	}
	g.write(ctx, due)
}
