package intent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// pod returns a pod with a label app and a port. name is "namespace/name", or
// "namespace/name of Kind/name" for a pod of a workload.
func pod(t *testing.T, name, app string, port corev1.ContainerPort, ips ...string) *corev1.Pod {
	t.Helper()
	name, owner, _ := strings.Cut(name, " of ")
	namespace, name, _ := strings.Cut(name, "/")
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Ports: []corev1.ContainerPort{port}}}},
	}
	if kind, owner, ok := strings.Cut(owner, "/"); ok {
		p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: owner, Controller: new(true)}}
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func policy(t *testing.T, text string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{}
	if err := yaml.UnmarshalStrict([]byte(text), p); err != nil {
		t.Fatal(err)
	}
	return p
}

// shop is a cluster whose database accepts connections only from the API, on the port sql.
func shop(t *testing.T) clusterstate.Input {
	http := corev1.ContainerPort{Name: "http", ContainerPort: 8080}
	sql := corev1.ContainerPort{Name: "sql", ContainerPort: 5432}
	ended := pod(t, "shop/old of Job/old", "api", http, "10.0.0.9")
	ended.Status.Phase = corev1.PodSucceeded
	in := clusterstate.Input{
		Features: compile.AllFeatures(),
		Pods: []*corev1.Pod{
			pod(t, "shop/api-1 of StatefulSet/api", "api", http, "10.0.0.1", "fd00::1"),
			pod(t, "shop/api-2 of StatefulSet/api", "api", http, "10.0.0.2", "fd00::2"),
			pod(t, "shop/db-0 of StatefulSet/db", "db", sql, "10.0.0.3", "fd00::3"),
			pod(t, "shop/six", "six", http, "fd00::6"),
			pod(t, "ops/probe", "probe", http, "10.0.1.1"),
			pod(t, "twice/two-0 of StatefulSet/two", "two", http, "10.0.1.2"),
			pod(t, "twice/two-x of DaemonSet/two", "two", http, "10.0.1.3"),
			pod(t, "ops/waiting of StatefulSet/waiting", "waiting", http),
			ended,
		},
		Policies: []compile.Object{policy(t, `
metadata: {namespace: shop, name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: api}}}]
    ports: [{port: sql}]
`)},
	}
	for _, name := range []string{"shop", "ops", "empty"} {
		in.Namespaces = append(in.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": name}}})
	}
	return in
}

// fakeNames knows pods, workloads, addresses, and all addresses outside.
type fakeNames struct {
	*reachability.Cluster
	pods []*corev1.Pod
}

func (f fakeNames) Client(name string) (side reachability.Side, of string, err error) {
	ref, err := workloads.Parse(name)
	switch {
	case name == outside:
		return f.Outside(reachability.FirstCommon, reachability.Translated{}), "", nil
	case err != nil || ref.Kind == "":
		side.Members, err = f.Endpoints(name)
		return side, "", err
	}
	selected := slices.DeleteFunc(slices.Clone(f.pods), func(p *corev1.Pod) bool { return workloads.Of(p) != ref })
	if len(selected) == 0 {
		return side, "", errors.New("no pods")
	}
	side.Members, side.LeftOut, err = f.Members(selected)
	return side, "", err
}

func (f fakeNames) Server(name string, port reachability.Port) (side reachability.Side, at reachability.Port, of string, err error) {
	side, of, err = f.Client(name)
	return side, port, of, err
}

// evaluate evaluates the only expectation of a file.
func evaluate(t *testing.T, text string) (*Result, error) {
	t.Helper()
	expectations, err := Parse("intent.yaml", []byte(head+"- {"+text+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	in := shop(t)
	results, err := Evaluate(in, reachability.New(in), expectations, fakeNames{reachability.New(in), in.Pods})
	if err != nil {
		return nil, err
	}
	return &results[0], nil
}

func TestEvaluate(t *testing.T) {
	const isolated = "ingress of shop/db-0: NetworkPolicies isolate the pod and none of their rules matches: shop/db"
	for _, c := range []struct {
		name, text  string
		connections int
		failures    []string // each "from to family reason"
	}{
		{"a pod", "from: shop/api-1, to: shop/db-0, port: sql, expect: allow", 2, nil},
		{"the number of the port", "from: shop/api-1, to: shop/db-0, port: 5432, expect: allow", 2, nil},
		{"another port", "from: shop/api-1, to: shop/db-0, port: 80, expect: allow", 2, []string{
			"shop/api-1 shop/db-0 IPv4 " + isolated, "shop/api-1 shop/db-0 IPv6 " + isolated}},
		{"all pods of a workload", "from: shop/sts/api, to: shop/sts/db, port: sql, expect: allow", 4, nil},
		{"one pod is denied", "from: ops/probe, to: shop/db-0, port: sql, expect: allow", 1, []string{"ops/probe shop/db-0 IPv4 " + isolated}},
		{"one pod is allowed", "from: shop/api-1, to: shop/db-0, port: sql, expect: deny", 2, []string{
			"shop/api-1 shop/db-0 IPv4 egress of shop/api-1: no policy selects the pod for egress; ingress of shop/db-0: shop/db spec.ingress[0] matches",
			"shop/api-1 shop/db-0 IPv6 egress of shop/api-1: no policy selects the pod for egress; ingress of shop/db-0: shop/db spec.ingress[0] matches"}},
		{"a namespace, without itself", "from: {namespace: shop}, to: shop/sts/db, port: sql, expect: allow", 5, []string{
			"shop/six shop/db-0 IPv6 " + isolated}},
		{"all but the API", "from: {namespaceSelector: {}, except: [shop/sts/api]}, to: shop/sts/db, port: sql, expect: deny", 4, nil},
		{"selectors", "from: {namespaceSelector: {matchLabels: {team: shop}}, podSelector: {matchLabels: {app: api}}}, to: shop/db-0, port: sql, expect: allow", 4, nil},
		{"a workload and a pod", "from: shop/sts/api, to: shop/db-0, port: sql, expect: allow", 4, nil},
		{"from outside", "from: outside, to: shop/sts/db, port: sql, expect: deny", 2, nil},
		{"to outside, in one family", "from: shop/six, to: outside, port: 443, expect: allow", 1, nil},
		{"an address", "from: 203.0.113.9, to: shop/db-0, port: sql, expect: deny", 1, nil},
		{"to an address", "from: shop/six, to: \"2001:db8::1\", port: 443, expect: allow", 1, nil},
		{"a server without the port denies", "from: ops/probe, to: {namespace: shop}, port: sql, expect: deny", 1, nil},
		{"a server without the port does not allow", "from: ops/probe, to: {namespace: shop, podSelector: {matchLabels: {app: api}}, except: [shop/api-2]}, port: 9999, expect: allow", 1, nil},
		{"some without the port", "from: shop/api-1, to: {namespace: shop, except: [shop/six]}, port: sql, expect: allow", 3, []string{
			"shop/api-1 shop/api-2  no connection: shop/api-2 declares no TCP port named sql"}},
		{"some without the family", "from: {namespace: shop, except: [shop/sts/db]}, to: ops/probe, port: http, expect: allow", 3, []string{
			"shop/six ops/probe  no connection: shop/six and ops/probe have no address of one family"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := evaluate(t, c.text)
			if err != nil {
				t.Fatal(err)
			}
			var failures []string
			for _, f := range r.Failures {
				failures = append(failures, fmt.Sprintf("%s %s %s %s", f.From, f.To, f.Family, f.Reason))
			}

			if r.Connections != c.connections || r.Failed != len(c.failures) || strings.Join(failures, "\n") != strings.Join(c.failures, "\n") {
				t.Errorf("%d connections, %d failed:\n%s\nwant %d:\n%s", r.Connections, r.Failed, strings.Join(failures, "\n"), c.connections, strings.Join(c.failures, "\n"))
			}
		})
	}
}

// An expectation about no connection is an error, because it would always hold.
func TestEvaluateRejects(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"a pod", "from: shop/wbe,\n  to: shop/db-0, port: 1, expect: deny", `intent.yaml:4: expectations[0].from: no pod "shop/wbe"`},
		{"an empty namespace", "from: {namespace: empty}, to: shop/api-1, port: 1, expect: deny", "expectations[0].from: there are no pods of namespace empty"},
		{"labels", "from: {namespaceSelector: {}, podSelector: {matchLabels: {app: x}}}, to: shop/api-1, port: 1, expect: deny", "there are no pods with app=x of all namespaces"},
		{"all excepted", "from: {namespace: shop, except: [shop/sts/api, shop/sts/db, shop/six]}, to: ops/probe, port: 1, expect: deny", "there are no pods of namespace shop except"},
		{"an exception that is none", "from: {namespace: shop, except: [shop/sts/web]}, to: ops/probe, port: 1, expect: deny", "except shop/sts/web: no pods"},
		{"an exception of another namespace", "from: {namespace: shop, except: [ops/probe]}, to: ops/probe, port: 1, expect: deny", "except ops/probe: it is not among the pods"},
		{"an ended pod", "from: shop/job/old, to: ops/probe, port: 1, expect: deny", "pod shop/old has ended"},
		{"a pod without an address", "from: ops/sts/waiting, to: shop/api-1, port: 1, expect: deny", "pod ops/waiting has no address yet"},
		{"itself", "from: shop/api-1, to: shop/api-1, port: 1, expect: allow", "intent.yaml:4: expectations[0]: both sides are shop/api-1, which always reaches itself"},
		{"a port name", "from: shop/api-1, to: shop/db-0, port: htpp, expect: deny", "expectations[0]: no connection: shop/db-0 declares no TCP port named htpp"},
		{"families", "from: shop/six, to: ops/probe, port: 1, expect: deny", "no connection: shop/six and ops/probe have no address of one family"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := evaluate(t, c.text)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v, %v, want %s", r, err, c.want)
			}
		})
	}
}

func TestPodsWithoutAddressAreReported(t *testing.T) {
	r, err := evaluate(t, "from: {namespace: ops}, to: shop/db-0, port: sql, expect: deny")
	if err != nil || r.Connections != 1 || len(r.LeftOut) != 1 || !strings.Contains(r.LeftOut[0].Error(), "pod ops/waiting has no address yet") {
		t.Errorf("got %+v, %v", r, err)
	}
}

// Only the first of many failures are explained.
func TestOnlyTheFirstFailuresAreExplained(t *testing.T) {
	in := shop(t)
	for i := range 20 {
		in.Pods = append(in.Pods, pod(t, fmt.Sprintf("ops/more-%d", i), "more", corev1.ContainerPort{}, fmt.Sprintf("10.0.2.%d", i)))
	}
	expectations, err := Parse("intent.yaml", []byte(head+"- {from: {namespace: ops}, to: shop/db-0, port: sql, expect: allow}\n"))
	if err != nil {
		t.Fatal(err)
	}
	results, err := Evaluate(in, reachability.New(in), expectations, fakeNames{reachability.New(in), in.Pods})
	if err != nil || results[0].Failed != 21 || len(results[0].Failures) != maxFailures || results[0].Holds() {
		t.Errorf("got %+v, %v", results, err)
	}
}
