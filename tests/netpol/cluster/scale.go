package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Scale is what the cluster has beside the scenarios, to see what that does to the provider. Its pods
// are only objects, with a status but without a node.
type Scale struct {
	Pods, Namespaces, Policies int
	// Churn is how many changes of these pods and policies are made in a second.
	Churn float64
}

// Validate returns an error that names every invalid field.
func (s Scale) Validate() error {
	var faults []error
	for name, value := range map[string]int{"Pods": s.Pods, "Namespaces": s.Namespaces, "Policies": s.Policies} {
		if value < 0 {
			faults = append(faults, fmt.Errorf("Scale.%s is %d", name, value))
		}
	}
	if s.Pods > scaleAddresses/2 {
		faults = append(faults, fmt.Errorf("Scale.Pods is %d, more than %d", s.Pods, scaleAddresses/2))
	}
	if s.Pods+s.Policies > 0 && s.Namespaces == 0 {
		faults = append(faults, errors.New("Scale.Namespaces is 0, so that there is no place for pods and policies"))
	}
	if s.Churn < 0 || s.Churn > 0 && s.Pods+s.Policies == 0 {
		faults = append(faults, fmt.Errorf("Scale.Churn is %v, with %d pods and policies", s.Churn, s.Pods+s.Policies))
	}
	return errors.Join(faults...)
}

const (
	// scaleLabel is on the namespaces of further pods, which are not those of scenarios: the run.
	scaleLabel = "netpol-suite/scale"
	// scaleApps is how many different labels its pods have. Policies select them by these.
	scaleApps = 20
	// scaleAddresses is how many addresses there are in the networks for benchmarks (RFC 2544), which
	// no real pod has. A new pod never gets the address of one that exists.
	scaleAddresses = 1 << 17
	// scaleRequests is how many objects are created at the same time.
	scaleRequests = 32
	// scaleTimeout limits how long these namespaces may take to disappear.
	scaleTimeout = 10 * time.Minute
)

// The networks for benchmarks.
var (
	scaleNetwork4 = netip.MustParseAddr("198.18.0.0")
	scaleNetwork6 = netip.MustParseAddr("2001:2::")
)

// scale is a Scale whose objects exist.
type scale struct {
	Scale
	name     runName
	client   kubernetes.Interface
	families []corev1.IPFamily
	stop     context.CancelFunc // of the churn
	ended    chan struct{}      // closed when the churn has ended

	mu        sync.Mutex
	addresses int       // given to pods so far
	changes   int       // made so far
	started   time.Time // the churn
	err       error     // why the churn ended early
}

// startScale creates further objects and begins to change them.
func startScale(ctx context.Context, client kubernetes.Interface, name runName, cfg Config) (*scale, error) {
	s := &scale{Scale: cfg.Scale, name: name, client: client, families: cfg.Families, ended: make(chan struct{})}
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, s.remove(context.WithoutCancel(ctx)))
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go s.churn(ctx)
	return s, nil
}

// create creates all namespaces, pods and policies.
func (s *scale) create(ctx context.Context) error {
	for i := range s.Namespaces {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.namespace(i), Labels: map[string]string{ownerLabel: ownerValue, scaleLabel: string(s.name)}}}
		if _, err := s.client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("namespace %s: %w", namespace.Name, err)
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(scaleRequests)
	for i := range s.Pods {
		group.Go(func() error { return s.createPod(ctx, i) })
	}
	for i := range s.Policies {
		group.Go(func() error {
			policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace(i), Name: scaleName(i)}, Spec: scaleSpec(i)}
			if _, err := s.client.NetworkingV1().NetworkPolicies(policy.Namespace).Create(ctx, policy, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("policy %s/%s: %w", policy.Namespace, policy.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// namespace returns the name of namespace i, and of that of pod or policy i.
func (s *scale) namespace(i int) string { return s.name.of(fmt.Sprintf("scale-%d", i%s.Namespaces)) }

func scaleName(i int) string { return fmt.Sprintf("scale-%d", i) }

func scaleApp(i int) map[string]string {
	return map[string]string{"app": fmt.Sprintf("app-%d", i%scaleApps)}
}

// scaleSpec opens the pods of one label to those of another one, in all namespaces.
func scaleSpec(i int) networkingv1.NetworkPolicySpec {
	return networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: scaleApp(i)},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From:  []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: scaleApp(i + i/scaleApps + 1)}}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(80))}},
		}},
	}
}

// createPod creates a pod that no scheduler looks at, and writes its status.
func (s *scale) createPod(ctx context.Context, i int) error {
	labels := scaleApp(i)
	labels["pod"] = []string{"a", "b", "c"}[i%3] // as scenarios select their own
	pods := s.client.CoreV1().Pods(s.namespace(i))
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace(i), Name: scaleName(i), Labels: labels},
		Spec: corev1.PodSpec{
			SchedulerName:                noScheduler,
			AutomountServiceAccountToken: new(false),
			Containers:                   []corev1.Container{{Name: "none", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", s.namespace(i), scaleName(i), err)
	}
	pod.Status = corev1.PodStatus{
		Phase:      corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		PodIPs:     s.newAddresses(),
	}
	pod.Status.PodIP = pod.Status.PodIPs[0].IP
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("status of pod %s: %w", netpol.PodName(pod), err)
	}
	return nil
}

// newAddresses returns the next address of each family.
func (s *scale) newAddresses() []corev1.PodIP {
	s.mu.Lock()
	n := s.addresses % scaleAddresses
	s.addresses++
	s.mu.Unlock()
	var ips []corev1.PodIP
	for _, family := range s.families {
		network := scaleNetwork4
		if family == corev1.IPv6Protocol {
			network = scaleNetwork6
		}
		bytes := network.AsSlice()
		for i, rest := len(bytes)-1, n; rest > 0; i, rest = i-1, rest>>8 {
			bytes[i] += byte(rest)
		}
		addr, _ := netip.AddrFromSlice(bytes)
		ips = append(ips, corev1.PodIP{IP: addr.String()})
	}
	return ips
}

// churn changes objects until ctx ends. It does not make up for changes that are late.
func (s *scale) churn(ctx context.Context) {
	defer close(s.ended)
	s.mu.Lock()
	s.started = time.Now()
	s.mu.Unlock()
	if s.Churn == 0 {
		return
	}
	ticker := time.NewTicker(time.Duration(float64(time.Second) / s.Churn))
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := s.change(ctx, n)
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.changes++
		s.err = err
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// change makes change n: another label of a pod, a pod that replaces another one, another policy.
func (s *scale) change(ctx context.Context, n int) error {
	kinds := []func(context.Context, int) error{s.relabel, s.replace, s.rewrite}
	if s.Pods == 0 {
		kinds = kinds[2:]
	}
	if s.Policies == 0 {
		kinds = kinds[:2]
	}
	return kinds[n%len(kinds)](ctx, n/len(kinds))
}

func (s *scale) relabel(ctx context.Context, n int) error {
	i, round := (n+s.Pods/2)%s.Pods, n/s.Pods+1 // not the pod that is replaced next
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, scaleApp(i + round)["app"])
	_, err := s.client.CoreV1().Pods(s.namespace(i)).Patch(ctx, scaleName(i), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("label pod %s/%s: %w", s.namespace(i), scaleName(i), err)
	}
	return nil
}

func (s *scale) replace(ctx context.Context, n int) error {
	i := n % s.Pods
	err := s.client.CoreV1().Pods(s.namespace(i)).Delete(ctx, scaleName(i), metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete pod %s/%s: %w", s.namespace(i), scaleName(i), err)
	}
	return s.createPod(ctx, i)
}

func (s *scale) rewrite(ctx context.Context, n int) error {
	i, round := n%s.Policies, n/s.Policies+1
	patch := fmt.Appendf(nil, `{"spec":{"podSelector":{"matchLabels":{"app":%q}}}}`, scaleApp(i + round)["app"])
	_, err := s.client.NetworkingV1().NetworkPolicies(s.namespace(i)).Patch(ctx, scaleName(i), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("change policy %s/%s: %w", s.namespace(i), scaleName(i), err)
	}
	return nil
}

// describe returns what there is, with the changes that were really made.
func (s *scale) describe() *netpol.Scale {
	s.mu.Lock()
	defer s.mu.Unlock()
	described := &netpol.Scale{Pods: s.Pods, Namespaces: s.Namespaces, Policies: s.Policies, Changes: s.changes}
	if seconds := time.Since(s.started).Seconds(); s.changes > 0 {
		described.ChangesPerSecond = float64(int(10*float64(s.changes)/seconds)) / 10
	}
	return described
}

// close ends the churn and removes all objects. It returns why the churn ended early, if it did.
func (s *scale) close() error {
	s.stop()
	<-s.ended
	err := s.remove(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.err, err)
}

// remove deletes the namespaces, and with them everything, and waits until they are gone.
func (s *scale) remove(ctx context.Context) error {
	deleted := make(map[string]bool)
	return waitFor(ctx, scaleTimeout, "namespaces of further pods to be gone", func(ctx context.Context) (bool, error) {
		list, err := s.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: scaleLabel + "=" + string(s.name)})
		if err != nil {
			return false, fmt.Errorf("list namespaces: %w", err)
		}
		for _, namespace := range list.Items {
			if deleted[namespace.Name] {
				continue
			}
			if err := s.client.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return false, fmt.Errorf("delete namespace %s: %w", namespace.Name, err)
			}
			deleted[namespace.Name] = true
		}
		return len(list.Items) == 0, nil
	})
}
