package statefile

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"

	"sigs.k8s.io/kube-network-policies/pkg/base/sealedfile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
)

var known = time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)

func keep(*compile.Pod) {}

func newPod(name, node string, addrs ...string) *compile.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name},
			CreationTimestamp: metav1.NewTime(known)},
		Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "account-" + name, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: 8080}, {Name: "dns", ContainerPort: 53, Protocol: corev1.ProtocolUDP}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return compile.NewPod(p)
}

// newState returns a State with objects of every kind.
func newState() *State {
	deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "deny", Generation: 3}}
	ports := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "ports"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}, {IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.1.0.0/16"}}}},
			Ports: []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromString("http"))}, {Port: ptr.To(intstr.FromInt32(80)), EndPort: ptr.To(int32(0))}},
		}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
	ended := newPod("ended", "other")
	ended.Terminating = true
	return &State{
		Header:     Header{Node: "n", Boot: "boot-1", Kinds: []string{"NetworkPolicy"}, Known: known, Versions: map[string]string{"Pod": "17"}},
		Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"team": "a"}}}, {ObjectMeta: metav1.ObjectMeta{Name: "y"}}},
		Nodes: []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24"}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}}}}},
		CIDRGroups: []*proposed.CIDRGroup{{ObjectMeta: metav1.ObjectMeta{Name: "g", Labels: map[string]string{"env": "a"}}, Spec: proposed.CIDRGroupSpec{CIDRs: []v1beta1.CIDR{"192.0.2.0/24"}}}},
		Pods:       []*compile.Pod{newPod("near", "n", "10.0.0.1", "fd00::1"), newPod("far", "other", "10.0.1.1"), ended},
		Policies: []compile.Object{
			deny, ports,
			&v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: v1alpha1.AdminNetworkPolicySpec{Priority: 7,
				Subject: v1alpha1.AdminNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}}}},
			&v1alpha1.BaselineAdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
			&proposed.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: proposed.ClusterNetworkPolicySpec{Tier: v1beta1.AdminTier, Priority: 3}},
		},
	}
}

// newCache returns the cache at path of node n, which has booted once.
func newCache(path string) *Cache {
	return New(Config{Path: path, MaxAge: time.Hour, Node: "n", Boot: "boot-1", Registerer: prometheus.NewRegistry()})
}

func (c *Cache) count(r sealedfile.Reason) float64 {
	return testutil.ToFloat64(c.file.Metrics.Reads.WithLabelValues(string(r)))
}

func TestAStateIsReadAsItWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	c := newCache(path)
	want := newState()
	if err := c.Write(newState()); err != nil {
		t.Fatal(err)
	}
	shared := 0
	got, err := c.Read(known.Add(time.Minute), func(*compile.Pod) { shared++ })
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, time.Time{}), cmpopts.IgnoreUnexported(policy.Chain{})); diff != "" {
		t.Errorf("read differs from what was written:\n%s", diff)
	}
	if shared != len(want.Pods) || c.count(sealedfile.Used) != 1 || testutil.ToFloat64(c.file.Metrics.Writes.WithLabelValues("success")) != 1 {
		t.Errorf("%d pods are shared, reads %v, writes %v", shared, c.count(sealedfile.Used), testutil.ToFloat64(c.file.Metrics.Writes.WithLabelValues("success")))
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); err != nil || len(names) != 1 {
		t.Errorf("files %v, %v", names, err)
	}
}

// TestFilesThatAreNotUsed: each has one reason, which the error names.
func TestFilesThatAreNotUsed(t *testing.T) {
	content := func(change func(*State)) []byte {
		s := newState()
		change(s)
		b, err := sealed(s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	same := content(func(*State) {})
	damaged := bytes.Clone(same)
	damaged[len(damaged)/2] ^= 1
	for name, tc := range map[string]struct {
		content []byte
		reason  sealedfile.Reason
		want    string
	}{
		"none":                {nil, sealedfile.Missing, "no such file"},
		"empty":               {[]byte{}, sealedfile.Version, "another version or another program has written it"},
		"another version":     {bytes.Replace(same, []byte("snapshot 3"), []byte("snapshot 4"), 1), sealedfile.Version, "another version or another program has written it"},
		"something else":      {[]byte("kind: Pod\n"), sealedfile.Version, "or another program"},
		"damaged":             {damaged, sealedfile.Corrupt, "the checksum is wrong"},
		"truncated":           {same[:len(same)-1], sealedfile.Corrupt, "the checksum is wrong"},
		"cut to the title":    {same[:len(format.Title)+64], sealedfile.Version, "does not begin with"},
		"not compressed":      {withChecksum([]byte("{}")), sealedfile.Corrupt, "cannot be read"},
		"half of an object":   {withChecksum(compressed(`{"node":"n"}{"k":"Pod"`)), sealedfile.Corrupt, "unexpected EOF"},
		"of no kind":          {withChecksum(compressed(`{"node":"n"}{"k":"Secret","o":{}}`)), sealedfile.Corrupt, "Secret: unknown kind"},
		"with a wrong object": {withChecksum(compressed(`{"node":"n"}{"k":"Pod","o":{"a":["10.0.0.300"]}}`)), sealedfile.Corrupt, "Pod: "},
		"with a wrong addr":   {withChecksum(compressed(`{"node":"n"}{"k":"Pod","o":{"s":"x","n":"a","i":1,"a":[""]}}`)), sealedfile.Corrupt, "is no address"},
		"without an ID":       {withChecksum(compressed(`{"node":"n"}{"k":"Pod","o":{"s":"x","n":"a"}}`)), sealedfile.Corrupt, "has no ID"},
		"without a name":      {withChecksum(compressed(`{"node":"n"}{"k":"Pod","o":{"s":"x"}}`)), sealedfile.Corrupt, "no name"},
		"without a namespace": {withChecksum(compressed(`{"node":"n"}{"k":"NetworkPolicy","o":{"metadata":{"name":"p"}}}`)), sealedfile.Corrupt, "no name"},
		"another node":        {content(func(s *State) { s.Node = "m" }), node, `of node "m", not "n"`},
		"other kinds":         {content(func(s *State) { s.Kinds = []string{"NetworkPolicy", "ClusterNetworkPolicy"} }), kinds, "NetworkPolicy, ClusterNetworkPolicy enabled, now they are NetworkPolicy"},
		"too old":             {content(func(s *State) { s.Known = known.Add(-time.Hour) }), age, "which is 1h1m0s ago; the maximum is 1h0m0s"},
		"of the future":       {content(func(s *State) { s.Known = known.Add(3 * time.Minute) }), age, "-2m0s ago"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "snapshot")
			if tc.content != nil {
				if err := os.WriteFile(path, tc.content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c := newCache(path)
			s, err := c.Read(known.Add(time.Minute), keep)
			if s != nil || err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, %v, want an error with %q", s, err, tc.want)
			}
			if c.count(tc.reason) != 1 {
				t.Errorf("reason %q is not counted", tc.reason)
			}
			if got := errors.Is(err, fs.ErrNotExist); got != (tc.reason == sealedfile.Missing) {
				t.Errorf("the error says that there is no file: %v", got)
			}
		})
	}
}

func TestAFolderIsNoSnapshot(t *testing.T) {
	c := newCache(t.TempDir())
	if _, err := c.Read(known, keep); err == nil || c.count(sealedfile.Unreadable) != 1 {
		t.Errorf("got %v", err)
	}
	if err := c.Write(newState()); err == nil || testutil.ToFloat64(c.file.Metrics.Writes.WithLabelValues("error")) != 1 {
		t.Errorf("got %v for a file in the place of a folder", err)
	}
}

func TestAfterABootOwnPodsHaveNoAddresses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	if err := newCache(path).Write(newState()); err != nil {
		t.Fatal(err)
	}
	c := New(Config{Path: path, MaxAge: time.Hour, Node: "n", Boot: "boot-2", Registerer: prometheus.NewRegistry()})
	s, err := c.Read(known, keep)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, p := range s.Pods {
		got[p.Endpoint.Name] = len(p.Addrs)
	}
	if diff := cmp.Diff(map[string]int{"near": 0, "far": 1, "ended": 0}, got); diff != "" {
		t.Errorf("numbers of addresses differ:\n%s", diff)
	}
}

// TestTwoAgentsMayWrite: a reader sees the complete file of one of them.
func TestTwoAgentsMayWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	if err := newCache(path).Write(newState()); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			c := newCache(path)
			for range 50 {
				if err := c.Write(newState()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		if _, err := newCache(path).Read(known, keep); err != nil {
			t.Error(err)
		}
	}
	writers.Wait()
}

// TestTheFormatHasANumber fails when a file of another version may mean something else.
// Change the number in format with these.
func TestTheFormatHasANumber(t *testing.T) {
	var fields []string
	for _, v := range []any{Header{}, compile.Pod{}, policy.Endpoint{}, policy.NamedPort{}, pod{}} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			fields = append(fields, fmt.Sprintf("%s.%s %s", typ.Name(), typ.Field(i).Name, typ.Field(i).Type))
		}
	}
	want := strings.Join([]string{
		"Header.Node string", "Header.Boot string", "Header.Kinds []string", "Header.Known time.Time", "Header.Versions map[string]string",
		"Pod.Endpoint policy.Endpoint", "Pod.UID types.UID", "Pod.Node string", "Pod.Addrs []netip.Addr", "Pod.Announced []netip.Addr", "Pod.Outdated []netip.Addr", "Pod.Created int64", "Pod.Terminating bool", "Pod.OwnNetwork bool",
		"Endpoint.Namespace string", "Endpoint.Name string", "Endpoint.ID uint32", "Endpoint.Version *policy.Version", "Endpoint.Account string", "Endpoint.Labels policy.Labels",
		"Endpoint.NamespaceLabels policy.Labels", "Endpoint.Ports []policy.NamedPort", "Endpoint.Ingress *policy.Chain", "Endpoint.Egress *policy.Chain",
		"Endpoint.AwaitsStatus bool", "Endpoint.Dispute *policy.Dispute", "Endpoint.Rejects bool", "Endpoint.Audited *policy.Endpoint",
		"NamedPort.Name string", "NamedPort.Proto packet.Proto", "NamedPort.Port uint16",
		"pod.Namespace string", "pod.Name string", "pod.ID uint32", "pod.UID types.UID", "pod.Node string", "pod.Addrs []netip.Addr", "pod.Created int64",
		"pod.Terminating bool", "pod.OwnNetwork bool", "pod.Account string", "pod.Labels map[string]string", "pod.Ports []policy.NamedPort",
	}, "\n")
	if diff := cmp.Diff(want, strings.Join(fields, "\n")); diff != "" {
		t.Errorf("the fields of version 3 were others:\n%s", diff)
	}
}

func compressed(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.Bytes()
}

func withChecksum(body []byte) []byte {
	return slices.Concat([]byte(format.Title), fmt.Appendf(nil, "%x\n", sha256.Sum256(body)), body)
}

// sealed returns a file with the state.
func sealed(s *State) ([]byte, error) {
	return format.Seal(func(w io.Writer) error { return encode(w, s) })
}

// opened reads a file.
func opened(content []byte) error {
	return format.Open(content, func(r io.Reader) error {
		_, err := decode(r, keep)
		return err
	})
}

// FuzzDecode: every state that can be decoded can be enforced.
func FuzzDecode(f *testing.F) {
	var b bytes.Buffer
	if err := encode(&b, newState()); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"node":"n"}{"k":"Pod","o":{"s":"x","n":"a","i":1,"a":["10.0.0.1"],"p":[{"Proto":17}]}}`))
	f.Add([]byte(`{}{"k":"NetworkPolicy","o":{"metadata":{"namespace":"x","name":"p"},"spec":{"ingress":[{"from":[{"ipBlock":{"cidr":"::/0"}}]}]}}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		_ = opened(content)
		s, err := decode(bytes.NewReader(content), keep)
		if err != nil {
			return
		}
		if _, err := sealed(s); err != nil {
			t.Errorf("cannot be written again: %v", err)
		}
		c := clusterstate.New(clusterstate.Config{NodeName: s.Node, Features: compile.AllFeatures()})
		for _, o := range s.Namespaces {
			c.Set(o)
		}
		for _, o := range s.Nodes {
			c.Set(o)
		}
		for _, o := range s.Pods {
			c.Set(o)
		}
		for _, o := range s.Policies {
			c.Set(o)
		}
		c.Snapshot().Prepare()
	})
}
