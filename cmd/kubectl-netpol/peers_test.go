package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/clusterfiles"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/packet"
)

// peerLine is a line of the connections between workloads that netpol-analyzer of np-guard prints:
// "shop/web[Deployment] => shop/db[StatefulSet] : TCP 5432,UDP 53".
var peerLine = regexp.MustCompile(`^([^/ ]+/[^\[ ]+)\[(\w+)\] => ([^/ ]+/[^\[ ]+)\[(\w+)\] : (.+)$`)

// replicaHash is what a Deployment adds to the name of a ReplicaSet.
var replicaHash = regexp.MustCompile(`-[a-z0-9]{8,10}$`)

// TestPeer compares what pods reach of each other with what another program says: make test-peer
// PEER=FOLDER, with a checkout of cyclonus or of netpol-analyzer.
func TestPeer(t *testing.T) {
	switch checkout := os.Getenv("PEER"); {
	case checkout == "":
		t.Skip("PEER names no checkout")
	case isFolder(filepath.Join(checkout, "cmd/cyclonus")):
		compareCyclonus(t, checkout)
	default:
		compareAnalyzer(t, checkout)
	}
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// compareCyclonus compares the policies that cyclonus generates. Steps that change pods or namespaces
// are left out.
func compareCyclonus(t *testing.T, checkout string) {
	program, err := filepath.Abs("testdata/peers/cyclonus.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(checkout, "cmd/verdicts/main.go"): program}})
	if err == nil {
		err = os.WriteFile(overlay, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", "-C", checkout, "-mod=mod", "-overlay", overlay, "./cmd/verdicts")
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &complaint)
	}
	steps := 0
	for line := range strings.Lines(string(out)) {
		var step struct {
			Name     string
			Policies map[string]*networkingv1.NetworkPolicy
			Allowed  []string
		}
		if err := json.Unmarshal([]byte(line), &step); err != nil {
			t.Fatal(err)
		}
		steps++
		in := cyclonusCluster()
		for _, p := range step.Policies {
			in.Policies = append(in.Policies, p)
		}
		if got := cyclonusAllowed(t, reachability.New(in)); !slices.Equal(got, step.Allowed) {
			t.Errorf("%s: got %d connections, want %d: %v", step.Name, len(got), len(step.Allowed), step.Policies)
		}
	}
	t.Logf("%d steps compared", steps)
	if steps == 0 {
		t.Error("nothing was compared")
	}
}

// cyclonusCluster has the pods of testdata/peers/cyclonus.go.txt.
func cyclonusCluster() clusterstate.Input {
	in := clusterstate.Input{Features: compile.AllFeatures()}
	for i, namespace := range []string{"x", "y", "z"} {
		in.Namespaces = append(in.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"ns": namespace}}})
		for j, name := range []string{"a", "b", "c"} {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"pod": name}}}
			for _, protocol := range []corev1.Protocol{"TCP", "UDP", "SCTP"} {
				for _, port := range []int32{80, 81} {
					declared := corev1.ContainerPort{Name: fmt.Sprintf("serve-%d-%s", port, strings.ToLower(string(protocol))), Protocol: protocol, ContainerPort: port}
					pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Ports: []corev1.ContainerPort{declared}})
				}
			}
			pod.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.0.%d.%d", i, j+1)}}
			in.Pods = append(in.Pods, pod)
		}
	}
	return in
}

// cyclonusAllowed returns the allowed connections as testdata/peers/cyclonus.go.txt prints them.
func cyclonusAllowed(t *testing.T, c *reachability.Cluster) []string {
	t.Helper()
	pods := c.Pods(reachability.FirstCommon)
	found := []string{}
	for i := range pods {
		for j := range pods {
			for _, protocol := range []string{"TCP", "UDP", "SCTP"} {
				for _, number := range []string{"80", "81"} {
					port, err := reachability.ParsePort(number, protocol)
					if err != nil {
						t.Fatal(err)
					}
					if i != j && c.Allowed(&pods[i], &pods[j], port, reachability.FirstCommon) {
						found = append(found, strings.Join([]string{pods[i].Name, pods[j].Name, protocol, number}, " "))
					}
				}
			}
		}
	}
	return found
}

// compareAnalyzer compares the outputs in a checkout of netpol-analyzer. Not compared are folders with more
// networks than that of the cluster, folders that API servers would refuse, host-network pods, which
// that program takes for pods, and cells whose pods differ or depend on addresses, of which it shows
// one line.
func compareAnalyzer(t *testing.T, checkout string) {
	outputs, err := filepath.Glob(filepath.Join(checkout, "test_outputs/connlist/*_connlist_output.txt"))
	if err != nil || len(outputs) == 0 {
		t.Fatalf("no outputs in %s: %v", checkout, err)
	}
	folders, cells := 0, 0
	for _, output := range outputs {
		name := strings.TrimSuffix(filepath.Base(output), "_connlist_output.txt")
		folder := filepath.Join(checkout, "tests", name)
		if !isFolder(folder) {
			continue // of a part of a folder
		}
		t.Run(name, func(t *testing.T) {
			want := peerConnections(t, output)
			if hasNetworks(t, folder) {
				t.Skip("it has other networks")
			}
			objects, err := clusterfiles.Read([]string{folder}, nil, clusterfiles.Options{})
			if err != nil {
				t.Skipf("refused: %v", err)
			}
			folders++
			cells += comparePeer(t, objects, want)
		})
	}
	t.Logf("%d folders and %d cells compared", folders, cells)
	if cells == 0 {
		t.Error("nothing was compared")
	}
}

// peerConnections returns the ports of an output by client and server.
func peerConnections(t *testing.T, output string) map[[2]string]reachability.PortSet {
	t.Helper()
	text, err := os.ReadFile(output)
	if err != nil {
		t.Fatal(err)
	}
	all := map[[2]string]reachability.PortSet{}
	for line := range strings.Lines(string(text)) {
		if m := peerLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			all[[2]string{peerName(m[1], m[2]), peerName(m[3], m[4])}] = peerPorts(t, m[5])
		}
	}
	return all
}

// peerName is the name of a workload without its kind. That of a ReplicaSet is the one of its Deployment.
func peerName(name, kind string) string {
	if kind == workloads.ReplicaSet {
		return replicaHash.ReplaceAllString(name, "")
	}
	return name
}

// peerPorts parses ports such as "All Connections" or "TCP 80,8080-8090,UDP 53".
func peerPorts(t *testing.T, text string) reachability.PortSet {
	t.Helper()
	if text == "All Connections" {
		return withPorts
	}
	var ranges []reachability.PortRange
	proto := packet.Unknown
	for _, part := range strings.Split(text, ",") {
		if name, numbers, named := strings.Cut(part, " "); named {
			proto, part = reachability.ProtocolOf(corev1.Protocol(name)), numbers
		}
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(from, 10, 16)
		last, errLast := strconv.ParseUint(to, 10, 16)
		if err != nil || errLast != nil || proto == packet.Unknown {
			t.Fatalf("ports %q", text)
		}
		ranges = append(ranges, reachability.PortRange{Proto: proto, First: uint16(first), Last: uint16(last)})
	}
	return reachability.NewPortSet(ranges...)
}

// withPorts are all ports, without the protocols that have none.
var withPorts = reachability.NewPortSet(slices.DeleteFunc(slices.Clone(reachability.AllPorts().Ranges()), func(r reachability.PortRange) bool { return !r.Proto.HasPorts() })...)

// hasNetworks reports whether manifests in a folder attach pods to more networks.
func hasNetworks(t *testing.T, folder string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		found = found || regexp.MustCompile(`k8s\.ovn\.org|k8s\.cni\.cncf\.io|multinetwork`).Match(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// comparePeer compares the cells of all pairs of different workloads, and returns their number.
func comparePeer(t *testing.T, objects *clusterfiles.Objects, want map[[2]string]reachability.PortSet) (cells int) {
	t.Helper()
	c := reachability.New(clusterstate.Input{
		Features: compile.AllFeatures(), Namespaces: objects.Namespaces, Pods: objects.Pods, Nodes: objects.Nodes,
		CIDRGroups: objects.CIDRGroups, Policies: objects.Policies,
	})
	pods := slices.DeleteFunc(c.Pods(reachability.FirstCommon), func(e reachability.Endpoint) bool { return e.Kind != reachability.Pod })
	sides := c.Sides(pods, func(p *corev1.Pod) reachability.Side {
		w := workloads.Of(p)
		return reachability.Side{Namespace: w.Namespace, Name: peerName(w.Name, w.Kind), Replicated: true}
	})
	o := c.Overview(sides, sides, reachability.Port{}, reachability.FirstCommon)
	for row := range sides {
		for column := range sides {
			if row == column || !o.Some(row, column).Empty() {
				continue
			}
			cells++
			got := o.Every(row, column).Intersect(withPorts)
			if expected := want[[2]string{sides[row].String(), sides[column].String()}]; got.String() != expected.String() {
				t.Errorf("%s -> %s: got %q, want %q", &sides[row], &sides[column], got, expected)
			}
		}
	}
	return cells
}
