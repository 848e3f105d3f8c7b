package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

const (
	// doctorAtOnce limits how many requests and connections are made concurrently.
	doctorAtOnce = 16
	doctorPoll   = time.Second
	// doctorRequest limits a request whose end does not depend on that of the command.
	doctorRequest = 30 * time.Second
	// podsTimeout is how long pods may take to run, settleTimeout how long policies may take to be
	// effective.
	podsTimeout   = 2 * time.Minute
	settleTimeout = 30 * time.Second

	// The ports of the servers: both policies allow the first, and each denies one of the others.
	portAllowed         = 8080
	portNoIngress       = 8081
	portNoEgress        = 8082
	roleLabel           = "netpol-doctor"
	roleClient          = "client"
	roleServer          = "server"
	doctorUser    int64 = 65532
)

var doctorPorts = []int32{portAllowed, portNoIngress, portNoEgress}

// connectionTest is a test of real connections. On each node it has a client and a server.
type connectionTest struct {
	*examination
	namespace string
	nodes     []string
	pods      map[string]*corev1.Pod // by name, once they run
	failing   map[string]bool        // attempts that failed without policies

	mu sync.Mutex // of what follows
	mismatches
	failed map[string]error // a failure to make an attempt, by node
}

// mismatches are attempts that ended otherwise than policies mean, by what they have in common.
type mismatches map[mismatch][]string

type mismatch struct{ where, what, do string }

// tryConnections makes connections without and with policies, and adds what it finds.
func (x *examination) tryConnections(ctx context.Context) {
	done := x.progress("Making connections")
	defer done()
	for _, a := range x.Agents {
		if a.AuditOnly {
			x.cannotSay("connections", errors.New("agents that only audit enforce nothing"))
			return
		}
	}
	t := &connectionTest{examination: x, namespace: "netpol-doctor-" + rand.String(8), pods: map[string]*corev1.Pod{}, failing: map[string]bool{}, mismatches: mismatches{}, failed: map[string]error{}}
	for i := range x.nodes {
		if isReady(&x.nodes[i]) {
			t.nodes = append(t.nodes, x.nodes[i].Name)
		} else {
			x.cannotSay("connections of node "+x.nodes[i].Name, errors.New("the node is not ready"))
		}
	}
	if err := t.run(ctx); err != nil {
		x.cannotSay("connections", err)
	}
	for _, node := range sortedKeys(t.failed) {
		x.cannotSay("connections of node "+node, t.failed[node])
	}
	for _, m := range slices.SortedFunc(maps.Keys(t.mismatches), func(a, b mismatch) int { return strings.Compare(a.where+a.what, b.where+b.what) }) {
		all := t.mismatches[m]
		slices.Sort(all)
		example := all[0]
		if len(all) > 1 {
			example += fmt.Sprintf(", and %d more", len(all)-1)
		}
		x.find(m.where, m.what+" ("+example+")", m.do)
	}
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (t *connectionTest) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, t.remove(ctx)) }()
	if err := t.createNamespace(ctx); err != nil {
		return err
	}
	if err := t.startPods(ctx); err != nil {
		return err
	}
	if err := t.try(ctx, false); err != nil {
		return err
	}
	for _, p := range t.policies() {
		if _, err := t.cluster.client.NetworkingV1().NetworkPolicies(t.namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create NetworkPolicy %s: %w", p.Name, err)
		}
	}
	return t.try(ctx, true)
}

// createNamespace waits for the server's answer even if the command is interrupted: a request that
// is given up may still create the namespace after it was deleted.
func (t *connectionTest) createNamespace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doctorRequest)
	defer cancel()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: t.namespace, Labels: map[string]string{roleLabel: ""}}}
	if _, err := t.cluster.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", t.namespace, err)
	}
	return nil
}

// remove deletes the namespace, also after the command was interrupted. It does so whether the
// namespace seems to have been created or not.
func (t *connectionTest) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doctorRequest)
	defer cancel()
	err := poll(ctx, func() (bool, error) {
		err := t.cluster.client.CoreV1().Namespaces().Delete(ctx, t.namespace, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		return err == nil || apierrors.IsForbidden(err), err
	})
	if err != nil {
		return fmt.Errorf("namespace %s may be left, delete it: %w", t.namespace, err)
	}
	return nil
}

// poll calls try until it is done or ctx ends. It returns the last error.
func poll(ctx context.Context, try func() (done bool, err error)) error {
	for {
		done, err := try()
		if done {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(doctorPoll):
		}
	}
}

// startPods starts the pods of all nodes. Afterwards, nodes are those with both pods.
func (t *connectionTest) startPods(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, podsTimeout, fmt.Errorf("not in %v", podsTimeout))
	defer cancel()
	var group errgroup.Group
	group.SetLimit(doctorAtOnce)
	for i, node := range t.nodes {
		for _, role := range []string{roleClient, roleServer} {
			group.Go(func() error { return t.createPod(ctx, t.pod(role, i, node)) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	var started map[string]*corev1.Pod
	err := poll(ctx, func() (bool, error) {
		list, err := t.cluster.client.CoreV1().Pods(t.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, fmt.Errorf("list the pods of namespace %s: %w", t.namespace, err)
		}
		started = map[string]*corev1.Pod{}
		for i := range list.Items {
			started[list.Items[i].Name] = &list.Items[i]
		}
		for _, pod := range started {
			if !runs(pod) {
				return false, nil
			}
		}
		return true, nil
	})
	if started == nil || errors.Is(err, context.Canceled) {
		return err
	}
	t.keepRunning(started)
	return nil
}

// keepRunning leaves out the nodes on which not both pods run.
func (t *connectionTest) keepRunning(started map[string]*corev1.Pod) {
	nodes := t.nodes
	t.nodes = nil
	for i, node := range nodes {
		client, server := started[podName(roleClient, i)], started[podName(roleServer, i)]
		stuck := slices.IndexFunc([]*corev1.Pod{client, server}, func(p *corev1.Pod) bool { return p == nil || !runs(p) })
		if stuck < 0 {
			t.pods[roleClient+node], t.pods[roleServer+node] = client, server
			t.nodes = append(t.nodes, node)
			continue
		}
		why := "its pod is gone"
		if p := []*corev1.Pod{client, server}[stuck]; p != nil {
			why = "its pod does not run: " + podProblem(p, roleLabel)
		}
		t.cannotSay("connections of node "+node, errors.New(why+"; --image names another image"))
	}
}

// runs reports whether a pod runs and has an address.
func runs(pod *corev1.Pod) bool {
	ready := podCondition(pod, corev1.PodReady)
	return ready != nil && ready.Status == corev1.ConditionTrue && len(pod.Status.PodIPs) > 0
}

// createPod creates a pod as soon as the namespace has the account that every pod needs.
func (t *connectionTest) createPod(ctx context.Context, pod *corev1.Pod) error {
	return poll(ctx, func() (bool, error) {
		_, err := t.cluster.client.CoreV1().Pods(t.namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err == nil {
			return true, nil
		}
		noAccount := apierrors.IsForbidden(err) && strings.Contains(err.Error(), "serviceaccount")
		return !noAccount, fmt.Errorf("create pod %s on node %s: %w", pod.Name, pod.Spec.NodeName, err)
	})
}

func podName(role string, i int) string { return role + "-" + strconv.Itoa(i) }

// pod returns a pod that every Pod Security Standard admits.
func (t *connectionTest) pod(role string, i int, node string) *corev1.Pod {
	yes, no, user, soon := true, false, doctorUser, int64(1)
	c := corev1.Container{
		Name: roleLabel, Image: t.image, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"pause"},
		SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
	}
	if role == roleServer {
		c.Args = []string{"porter"}
		for _, port := range doctorPorts {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SERVE_PORT_%d", port), Value: "here"})
		}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(portAllowed)}}}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: podName(role, i), Labels: map[string]string{roleLabel: role}},
		Spec: corev1.PodSpec{
			NodeName: node, Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &soon,
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers:      []corev1.Container{c},
		},
	}
}

// policies let clients connect to servers at one port. At each of the others, the policy of one side
// does not.
func (t *connectionTest) policies() []*networkingv1.NetworkPolicy {
	ports := func(numbers ...int32) (all []networkingv1.NetworkPolicyPort) {
		for _, n := range numbers {
			port := intstr.FromInt32(n)
			all = append(all, networkingv1.NetworkPolicyPort{Port: &port})
		}
		return all
	}
	selecting := func(role string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{roleLabel: role}}
	}
	clients, servers := selecting(roleClient), selecting(roleServer)
	return []*networkingv1.NetworkPolicy{
		{ObjectMeta: metav1.ObjectMeta{Name: roleServer}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: servers, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &clients}}, Ports: ports(portAllowed, portNoEgress)}},
		}},
		{ObjectMeta: metav1.ObjectMeta{Name: roleClient}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: clients, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress: []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &servers}}, Ports: ports(portAllowed, portNoIngress)}},
		}},
	}
}

// attempt is a connection to make.
type attempt struct {
	from, to string // nodes
	client   types.NamespacedName
	address  netip.AddrPort
	want     reachability.Explanation
}

func (a *attempt) String() string {
	return fmt.Sprintf("node %s to %s, TCP %d, %s", a.from, a.to, a.address.Port(), familyOf(a.address.Addr()))
}

func familyOf(a netip.Addr) reachability.Family {
	if a.Is4() {
		return reachability.IPv4
	}
	return reachability.IPv6
}

// attempts returns connections from each node to itself and to the next one, in all families,
// with what the policies of the cluster mean for each.
func (t *connectionTest) attempts(ctx context.Context) ([]*attempt, error) {
	in, err := t.cluster.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read what policies mean: %w", err)
	}
	c := reachability.New(in)
	var all []*attempt
	for i, node := range t.nodes {
		for _, other := range slices.Compact([]string{node, t.nodes[(i+1)%len(t.nodes)]}) {
			client, server := t.pods[roleClient+node], t.pods[roleServer+other]
			src, errFrom := c.Endpoint(t.namespace + "/" + client.Name)
			dst, errTo := c.Endpoint(t.namespace + "/" + server.Name)
			if err := errors.Join(errFrom, errTo); err != nil {
				return nil, err
			}
			for _, address := range dst.Addrs() {
				for _, number := range doctorPorts {
					port := reachability.Port{Proto: packet.TCP, Number: uint16(number)}
					if _, ok := reachability.Connectable(&src, &dst, port, familyOf(address)); ok {
						all = append(all, &attempt{node, other, types.NamespacedName{Namespace: t.namespace, Name: client.Name},
							netip.AddrPortFrom(address, uint16(number)), c.Explain(&src, &dst, port, familyOf(address))})
					}
				}
			}
		}
	}
	return all, nil
}

// try makes all connections, and records those that end otherwise than they should.
func (t *connectionTest) try(ctx context.Context, policies bool) error {
	all, err := t.attempts(ctx)
	if err != nil {
		return err
	}
	settled, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(doctorAtOnce)
	for _, a := range all {
		group.Go(func() error {
			connected, err := t.connect(ctx, settled, a)
			if err != nil || connected != a.want.Allowed {
				t.record(a, err, policies)
			}
			return ctx.Err()
		})
	}
	t.Connections += len(all)
	return group.Wait()
}

// connect reports whether a connection can be made. It repeats the attempt until it ends as it
// should, or settled ends.
func (t *connectionTest) connect(ctx, settled context.Context, a *attempt) (connected bool, err error) {
	_ = poll(settled, func() (bool, error) {
		connected, err = t.connectOnce(ctx, a)
		return err != nil || connected == a.want.Allowed, nil
	})
	return connected, err
}

// notConnected are the first words of agnhost about a connection that was not made.
var notConnected = []string{"TIMEOUT", "REFUSED", "OTHER"}

func (t *connectionTest) connectOnce(ctx context.Context, a *attempt) (bool, error) {
	address := net.JoinHostPort(a.address.Addr().String(), strconv.Itoa(int(a.address.Port())))
	_, err := t.output(ctx, a.client, roleLabel, "/agnhost", "connect", "--timeout=2s", address)
	if err != nil && ctx.Err() == nil && slices.ContainsFunc(notConnected, func(word string) bool { return strings.Contains(err.Error(), word) }) {
		return false, nil
	}
	return err == nil, err
}

// record adds an attempt that has not ended as it should, or failed with err.
func (t *connectionTest) record(a *attempt, err error, policies bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var m mismatch
	switch {
	case err != nil:
		t.failed[a.from] = err
		return
	case !a.want.Allowed:
		m = mismatch{"node " + denier(a), "a connection is made that policies deny", "see what its agent's log says about its start, queues and tables"}
	case !policies:
		t.failing[a.String()] = true
		m = mismatch{"nodes " + a.from + " and " + a.to, "pods do not connect, and no policy denies it", "check the network plugin, and what kubectl netpol flows --denied says"}
	case t.failing[a.String()]:
		return
	default:
		m = mismatch{"nodes " + a.from + " and " + a.to, "pods do not connect although policies allow it", "see what kubectl netpol flows --denied says"}
	}
	t.mismatches[m] = append(t.mismatches[m], a.String())
}

// denier returns the node that should have denied a connection.
func denier(a *attempt) string {
	for i := range a.want.Directions {
		if d := &a.want.Directions[i]; !d.Allowed {
			return d.Node
		}
	}
	return a.to
}
