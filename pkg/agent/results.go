package agent

import (
	"context"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/cniresults"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/kernel/links"
)

// maxResultSkew is how far in the future the time of a CNI result may be, because clocks are adjusted.
const maxResultSkew = time.Minute

// doubt is a reason not to rely on a CNI result or its time, and a label of the metric.
type doubt string

const (
	byInterface doubt = "interface" // an interface that it names is gone, or leads elsewhere
	byFuture    doubt = "future"    // it was written in the future
	byOrder     doubt = "order"     // it is newer than one that routes or the status confirm
)

var doubtMessages = map[doubt]string{
	byInterface: "CNI results are ignored, because their interfaces are gone or lead to other pods",
	byFuture:    "CNI results were written in the future: of results without interfaces, leftovers may count until the status of their pod is written",
	byOrder:     "CNI results contradict routes or statuses, which count instead: the clock was set back, or the files were copied",
}

// results passes on the CNI results of sandboxes that exist, as far as interfaces and routes show it. A
// result of an earlier boot may name the address that another pod has now, and may have the later time.
type results struct {
	links  prover // nil if interfaces are not read
	set    func([]clusterstate.Sandbox)
	doubts *prometheus.GaugeVec
	logger klog.Logger

	mu        sync.Mutex
	found     []cniresults.Sandbox
	published []clusterstate.Sandbox
	known     chan struct{}  // closed when set was called
	logged    map[doubt]bool // while it lasts
}

// prover is a *links.Watcher.
type prover interface {
	Read() error
	Evidence(names []string, addrs []netip.Addr) (e links.Evidence, known bool)
}

// newResults returns results that does not pass anything on yet.
func newResults(reg prometheus.Registerer, logger klog.Logger) *results {
	r := &results{
		doubts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "netpol_cni_cache_doubts",
			Help: "Results in the CNI cache that are ignored or whose time is wrong. interface: one that it names is gone or leads to another pod. future: it was written in the future. order: routes or the status confirm an older one.",
		}, []string{"reason"}),
		logger: logger,
		known:  make(chan struct{}),
		logged: map[doubt]bool{},
	}
	reg.MustRegister(r.doubts)
	for d := range doubtMessages {
		r.doubts.WithLabelValues(string(d))
	}
	return r
}

// follow is called with all results, the newest first. An interface may be newer than what was read.
func (r *results) follow(found []cniresults.Sandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found = found
	if _, refuted, _ := r.evaluate(); len(refuted) > 0 {
		_ = r.links.Read() // Healthy has the error
	}
	r.publish()
}

// relinked is called when interfaces or routes have changed.
func (r *results) relinked() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.found != nil {
		r.publish()
	}
}

// wait waits until follow was called and interfaces are known, if results name some: addresses of
// statuses may be those of before a boot, and so may results.
func (r *results) wait(ctx context.Context) {
	select {
	case <-r.known:
	case <-ctx.Done():
	}
}

// publish is called with the mutex held.
func (r *results) publish() {
	now, refuted, known := r.evaluate()
	if !known {
		return
	}
	r.report(byInterface, refuted)
	var future []string
	for _, s := range r.found {
		if time.Until(s.Written) > maxResultSkew {
			future = append(future, s.Namespace+"/"+s.Name)
		}
	}
	r.report(byFuture, future)
	if r.published != nil && reflect.DeepEqual(now, r.published) {
		return
	}
	if r.published == nil {
		defer close(r.known)
	}
	r.published = now
	r.set(now)
}

// evaluate returns the sandboxes that may exist, and the pods of results whose interfaces say otherwise.
// known is false if results name interfaces and these have not been read yet.
func (r *results) evaluate() (now []clusterstate.Sandbox, refuted []string, known bool) {
	now = []clusterstate.Sandbox{}
	for _, s := range r.found {
		evidence := links.NoEvidence
		if r.links != nil && len(s.Links) > 0 {
			if evidence, known = r.links.Evidence(s.Links, s.Addrs); !known {
				return nil, nil, false
			}
		}
		if evidence == links.Refuted {
			refuted = append(refuted, s.Namespace+"/"+s.Name)
			continue
		}
		now = append(now, clusterstate.Sandbox{Namespace: s.Namespace, Name: s.Name, UID: types.UID(s.UID), Addrs: s.Addrs, Proven: evidence == links.Proven})
	}
	return now, refuted, true
}

// misordered is called with the pods with a result that is newer than one that is believed.
func (r *results) misordered(pods []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report(byOrder, pods)
}

// report counts the pods with a doubtful result, and logs one of them when there was none before.
func (r *results) report(d doubt, pods []string) {
	r.doubts.WithLabelValues(string(d)).Set(float64(len(pods)))
	if len(pods) > 0 && !r.logged[d] {
		r.logger.Info(doubtMessages[d], "results", len(pods), "pod", pods[0])
	}
	r.logged[d] = len(pods) > 0
}

// addressesOf returns the addresses of all results, also of those that are not believed.
func addressesOf(found []cniresults.Sandbox) []netip.Addr {
	var addrs []netip.Addr
	for _, s := range found {
		addrs = append(addrs, s.Addrs...)
	}
	return addrs
}
