package property

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
	"sigs.k8s.io/kube-network-policies/tests/model/random"
)

// differences is the number of single changes to a cluster.
const differences = 24

// TestOneDifferenceIsNoticed: pods from which the rules read the same share cached evaluations. So
// after a pod or a namespace was evaluated and then changes in one thing only, decisions must still
// equal the oracle's.
func TestOneDifferenceIsNoticed(t *testing.T) {
	counts := tally{}
	forClusters(t, func(t *testing.T, g *gen, c oracle.Cluster) {
		compareDifferences(t, g, c, counts)
	})
	t.Logf("packets:\n%v", counts)
}

func FuzzOneDifference(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("any bytes choose a cluster"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g := newGenFromBytes(data)
		compareDifferences(t, g, g.cluster(), tally{})
	})
}

// compareDifferences follows a cluster through single changes.
func compareDifferences(t *testing.T, g *gen, c oracle.Cluster, counts tally) {
	t.Helper()
	followed := clusterstate.New(clusterstate.Config{NodeName: here, Features: input(c).Features})
	for _, o := range objectsOf(c) {
		followed.Set(setting(o))
	}
	var changed object
	for range differences {
		snapshot := followed.Snapshot()
		for _, q := range g.questions(c) {
			if pod, ok := changed.(*corev1.Pod); ok && !hasAddress(pod, q.Src.Addr()) && !hasAddress(pod, q.Dst.Addr()) {
				continue
			}
			got, want, asked := decisions(c, snapshot, q)
			if !asked {
				continue
			}
			counts.add(want)
			if wrong := disagreement(got, want); wrong != "" {
				t.Errorf("%s of %v on node %s differs\n got %v\nwant %v\n%s", wrong, q, here, got, want, describe(c))
				return
			}
		}
		if c, changed = g.oneDifference(c); changed != nil {
			followed.Set(setting(changed))
		}
	}
}

// hasAddress reports whether the pod's status has the address.
func hasAddress(pod *corev1.Pod, a netip.Addr) bool {
	return isShown(oracle.Cluster{Pods: []*corev1.Pod{pod}}, a)
}

// oneDifference returns c with a single change to a pod or a namespace, and the changed object, nil
// if c has neither.
func (g *gen) oneDifference(c oracle.Cluster) (oracle.Cluster, object) {
	switch {
	case len(c.Namespaces) > 0 && g.OneIn(6):
		n := g.IntN(len(c.Namespaces))
		changed := c.Namespaces[n].DeepCopy()
		changed.Labels = g.relabeled(changed.Labels)
		c.Namespaces = slices.Clone(c.Namespaces)
		c.Namespaces[n] = changed
		return c, changed
	case len(c.Pods) > 0:
		n := g.IntN(len(c.Pods))
		changed := g.changedPod(c.Pods[n])
		c.Pods = slices.Clone(c.Pods)
		c.Pods[n] = changed
		return c, changed
	}
	return c, nil
}

func (g *gen) changedPod(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	var ports []corev1.ContainerPort
	if len(pod.Spec.Containers) > 0 {
		ports = pod.Spec.Containers[0].Ports
	}
	switch {
	case g.OneIn(6):
		pod.Spec.Containers = random.List(g, 2, g.container)
	case len(ports) > 0 && g.OneIn(2):
		ports[g.IntN(len(ports))].Name = random.Pick(g, "web", "dns", "adm", "")
	default:
		pod.Labels = g.relabeled(pod.Labels)
	}
	return pod
}

// relabeled returns labels with one removed, added or changed. No policy uses the value w.
func (g *gen) relabeled(labels map[string]string) map[string]string {
	labels = maps.Clone(labels)
	if labels == nil {
		labels = map[string]string{}
	}
	key := random.Pick(g, "a", "a", "b", "b", "b", "c")
	if value := random.Pick(g, "x", "v", "w", "", "none"); value != "none" {
		labels[key] = value
	} else {
		delete(labels, key)
	}
	return labels
}
