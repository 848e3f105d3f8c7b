package property

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// addresses of the two nodes. %d makes the pods' addresses; few are in use, so pods often claim the
// same one.
type addressPlan struct {
	pod4, pod6, range4, range6 string
	node4, node6, bridge4      string
}

const podsPerNode = 6

var plans = map[string]addressPlan{
	here:  {"10.1.0.%d", "fd00:1::%d", "10.1.0.0/24", "fd00:1::/64", "192.168.0.1", "fd00:f::1", "10.1.0.100"},
	there: {"10.2.0.%d", "fd00:2::%d", "10.2.0.0/24", "fd00:2::/64", "192.168.0.2", "fd00:f::2", "10.2.0.100"},
}

func (g *gen) nodes() []*corev1.Node {
	var nodes []*corev1.Node
	for _, name := range []string{here, there} {
		if !g.OneIn(10) {
			nodes = append(nodes, g.node(name, plans[name]))
		}
	}
	return nodes
}

func (g *gen) node(name string, plan addressPlan) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: g.Labels()}}
	node.Spec.PodCIDRs = random.Pick(g, nil, []string{plan.range4}, []string{plan.range6}, []string{plan.range4, plan.range6})
	if len(node.Spec.PodCIDRs) > 0 {
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
	}
	if g.OneIn(8) {
		node.Spec.PodCIDRs = nil
	}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeInternalIP, Address: plan.node4},
		{Type: corev1.NodeInternalIP, Address: plan.node6},
	}
	if g.OneIn(3) {
		node.Status.Addresses = append(node.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: plan.bridge4})
	}
	return node
}

func (g *gen) pods(namespaces []string) []*corev1.Pod {
	var pods []*corev1.Pod
	n := g.IntN(11)
	uids := g.Perm(n)
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		pods = append(pods, g.pod(random.Pick(g, namespaces...), name, fmt.Sprintf("%d-%s", uids[i], name)))
	}
	if g.OneIn(8) {
		forgetOrigin(pods)
	}
	return pods
}

// forgetOrigin removes the fields that the server adds, as in manifests.
func forgetOrigin(pods []*corev1.Pod) {
	for _, pod := range pods {
		pod.UID, pod.CreationTimestamp = "", metav1.Time{}
	}
}

func (g *gen) pod(namespace, name, uid string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace:         namespace,
		Name:              name,
		UID:               types.UID(uid),
		Labels:            g.Labels(),
		CreationTimestamp: metav1.Time{Time: time.Unix(random.Pick[int64](g, 1000, 1001, 1002), 0).UTC()},
	}}
	if g.OneIn(6) {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(2000, 0).UTC()}
	}
	pod.Spec.NodeName = random.Pick(g, here, here, here, there, there, "")
	pod.Status.Phase = random.Pick(g, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning,
		corev1.PodRunning, corev1.PodPending, corev1.PodUnknown, "", corev1.PodSucceeded, corev1.PodFailed)
	g.giveAddresses(pod)
	pod.Spec.Containers = random.List(g, 2, g.container)
	pod.Spec.InitContainers = random.List(g, 1, g.container)
	for i := range pod.Spec.InitContainers {
		restart := random.Pick[corev1.ContainerRestartPolicy](g, "", "Never", "Always", "Always")
		if restart != "" {
			pod.Spec.InitContainers[i].RestartPolicy = &restart
		}
	}
	pod.Spec.ServiceAccountName = g.ServiceAccountOf(pod)
	return pod
}

func (g *gen) giveAddresses(pod *corev1.Pod) {
	plan := plans[random.Pick(g, pod.Spec.NodeName, pod.Spec.NodeName, pod.Spec.NodeName, here, there)]
	if plan == (addressPlan{}) {
		plan = plans[here]
	}
	n := 1 + g.IntN(podsPerNode)
	ip4, ip6 := fmt.Sprintf(plan.pod4, n), fmt.Sprintf(plan.pod6, n)
	if g.OneIn(8) {
		pod.Spec.HostNetwork = true
		ip4, ip6 = plan.node4, plan.node6
	}
	if g.OneIn(12) {
		ip4 = random.Pick(g, "::ffff:"+ip4, "0"+ip4, strings.Replace(ip4, ".0.", ".00.", 1))
	}
	ips := random.Pick(g, nil, []string{ip4}, []string{ip4}, []string{ip6}, []string{ip4, ip6}, []string{ip6, ip4}, []string{"", "bad"})
	for _, ip := range ips {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		pod.Status.PodIP = ips[0]
	}
	if g.OneIn(10) {
		pod.Status.PodIPs = nil
	}
	if g.OneIn(10) {
		pod.Status.PodIP = ""
	}
}

func (g *gen) container() corev1.Container {
	return corev1.Container{Ports: random.List(g, 3, func() corev1.ContainerPort {
		return corev1.ContainerPort{
			Name:          random.Pick(g, "web", "web", "dns", "dns", "adm", "", "Web"),
			Protocol:      random.Pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, ""),
			ContainerPort: random.Pick[int32](g, 80, 80, 81, 53, 8080, 65535, 0, 65536+80),
		}
	})}
}
