package apivalidation_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	unstructuredjson "k8s.io/apimachinery/pkg/util/json"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/apivalidation"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
	"sigs.k8s.io/kube-network-policies/pkg/engine/proposed"
	"sigs.k8s.io/kube-network-policies/tests/model/oracle"
)

// values has values of fields of peers and ports by Go type, without pointers.
var values = map[string]string{
	"v1.LabelSelector":       `{"matchLabels": {"a": "b"}}`,
	"v1.IPBlock":             `{"cidr": "192.0.2.0/24"}`,
	"v1.Protocol":            `"UDP"`,
	"intstr.IntOrString":     `80`,
	"int32":                  `90`,
	"string":                 `"web"`,
	"v1alpha1.NamespacedPod": `{"namespaceSelector": {}, "podSelector": {}}`,
	"v1beta1.NamespacedPod":  `{"namespaceSelector": {}, "podSelector": {}}`,
	"[]v1alpha1.CIDR":        `["192.0.2.0/24"]`,
	"[]v1beta1.CIDR":         `["192.0.2.0/24"]`,
	"[]v1alpha1.DomainName":  `["example.com"]`,
	"[]v1beta1.DomainName":   `["example.com"]`,
	"v1alpha1.Port":          `{"protocol": "TCP", "port": 80}`,
	"v1alpha1.PortRange":     `{"protocol": "TCP", "start": 80, "end": 90}`,
	"v1beta1.ClusterNetworkPolicyProtocolTCP":  `{"destinationPort": {"range": {"start": 80, "end": 90}}}`,
	"v1beta1.ClusterNetworkPolicyProtocolUDP":  `{"destinationPort": {"number": 80}}`,
	"v1beta1.ClusterNetworkPolicyProtocolSCTP": `{"destinationPort": {"number": 80}}`,
	"proposed.ServiceAccounts":                 `{"namespaceSelector": {}, "names": ["a"]}`,
	"proposed.CIDRGroups":                      `{"names": ["a"]}`,
	"proposed.All":                             `{}`,
}

// fixed has the other fields of an item that a field needs, and of objects and rules.
var fixed = map[string]string{
	"endPort":                         `{"port": 80}`,
	"NetworkPolicy":                   `{"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}`,
	"AdminNetworkPolicy":              `{"subject": {"namespaces": {}}, "priority": 1}`,
	"BaselineAdminNetworkPolicy":      `{"subject": {"namespaces": {}}}`,
	"ClusterNetworkPolicy":            `{"subject": {"namespaces": {}}, "priority": 1, "tier": "Admin"}`,
	"NetworkPolicy rule":              `{}`,
	"AdminNetworkPolicy rule":         `{"action": "Allow"}`,
	"BaselineAdminNetworkPolicy rule": `{"action": "Allow"}`,
	"ClusterNetworkPolicy rule":       `{"action": "Accept"}`,
	"NetworkPolicy peer":              `{"podSelector": {}}`,
	"AdminNetworkPolicy peer":         `{"namespaces": {}}`,
	"BaselineAdminNetworkPolicy peer": `{"namespaces": {}}`,
	"ClusterNetworkPolicy peer":       `{"namespaces": {}}`,
}

// itemField is a field of the peers or ports of a kind in a direction.
type itemField struct {
	kind      *compile.Kind
	direction policy.Direction
	list      string // from, to, ports or protocols
	reflect.StructField
	proposed bool // the released type does not have it
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func (f itemField) rules() string { return f.direction.String() }

// path is that of a gate's Adds.
func (f itemField) path() string {
	return "spec." + f.rules() + "." + f.list + "." + jsonName(f.StructField)
}

func (f itemField) isPeer() bool { return f.list == compile.PeersField(f.direction) }

// itemFields returns all fields of peers and ports.
func itemFields() (all []itemField) {
	for _, k := range compile.Kinds {
		spec, _ := reflect.TypeOf(k.New()).Elem().FieldByName("Spec")
		for direction, rules := range map[policy.Direction]string{policy.Ingress: "Ingress", policy.Egress: "Egress"} {
			list, _ := spec.Type.FieldByName(rules)
			for _, name := range []string{"From", "To", "Ports", "Protocols"} {
				if items, ok := list.Type.Elem().FieldByName(name); ok {
					all = append(all, fieldsOf(itemField{kind: k, direction: direction, list: jsonName(items)}, items.Type)...)
				}
			}
		}
	}
	return all
}

func fieldsOf(of itemField, items reflect.Type) (all []itemField) {
	if items.Kind() == reflect.Pointer {
		items = items.Elem()
	}
	visible := reflect.VisibleFields(items.Elem())
	extends := slices.ContainsFunc(visible, func(f reflect.StructField) bool { return f.Anonymous })
	for _, f := range visible {
		if !f.Anonymous {
			of.StructField, of.proposed = f, extends && !isReleased(items.Elem(), f)
			all = append(all, of)
		}
	}
	return all
}

// isReleased reports whether a field of a union is promoted from the released type.
func isReleased(union reflect.Type, f reflect.StructField) bool {
	return len(f.Index) > 1 && union.Field(f.Index[0]).Type.PkgPath() != union.PkgPath()
}

func parsed(t *testing.T, text string) (m map[string]any) {
	t.Helper()
	if err := unstructuredjson.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err, text)
	}
	return m
}

// object returns a policy of one rule with the field, nil if there is no value for it.
func (f itemField) object(t *testing.T) map[string]any {
	t.Helper()
	typ := f.Type
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	value, ok := values[typ.String()]
	if !ok {
		t.Errorf("there is no value for its type %s: add one to values", typ)
		return nil
	}
	name := f.kind.Name
	item := parsed(t, `{"`+jsonName(f.StructField)+`": `+value+`}`)
	if with, ok := fixed[jsonName(f.StructField)]; ok {
		maps.Copy(item, parsed(t, with))
	}
	rule := parsed(t, fixed[name+" rule"])
	rule[compile.PeersField(f.direction)] = []any{parsed(t, fixed[name+" peer"])}
	rule[f.list] = []any{item}
	spec := parsed(t, fixed[name])
	spec[f.rules()] = []any{rule}
	meta := map[string]any{"name": "default"}
	if f.kind.Namespaced {
		meta["namespace"] = "x"
	}
	return map[string]any{"apiVersion": f.kind.Resource.GroupVersion().String(), "kind": name, "metadata": meta, "spec": spec}
}

// TestFieldsOfPeersAndPorts: each field of the API's types is in the definitions, in compile with its
// gates, and in the oracle.
func TestFieldsOfPeersAndPorts(t *testing.T) {
	all := itemFields()
	if len(all) < 50 {
		t.Fatalf("found %d fields: the search is wrong", len(all))
	}
	for _, f := range all {
		t.Run(f.kind.Name+" "+f.path(), func(t *testing.T) { f.check(t) })
	}
	for _, path := range compile.KindClusterNetworkPolicy.Adds(everything()) {
		if !strings.HasPrefix(path, "spec.subject.") && !slices.ContainsFunc(all, func(f itemField) bool { return f.proposed && f.path() == path }) {
			t.Errorf("compile has a row for %s, which no type of pkg/engine/proposed has", path)
		}
	}
}

// everything returns all gates enabled.
func everything() (f compile.Features) {
	for _, g := range compile.Gates {
		*g.Field(&f) = true
	}
	return f
}

func (f itemField) check(t *testing.T) {
	o := f.object(t)
	if o == nil {
		return
	}
	if errs := apivalidation.Validate(o); len(errs) > 0 {
		t.Errorf("the definitions refuse it: a field of a proposal needs a patch in cmd/kubectl-netpol/apivalidation/crds/proposals: %v", errs.ToAggregate())
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	object := f.kind.New()
	if err := json.Unmarshal(text, object); err != nil {
		t.Fatal(err)
	}
	everything := everything()
	if found := f.kind.Diagnose(object, everything); len(found) > 0 {
		t.Errorf("compile does not know it with all gates: %s: %v", f.missing(object), found)
	}
	if found := oracleFaults(t, object, everything); len(found) > 0 {
		t.Errorf("the oracle does not know it with all gates: read it in tests/model/oracle: %v", found)
	}
	f.checkGates(t, object, everything)
}

// missing says which part of compile does not have the field.
func (f itemField) missing(o compile.Object) string {
	if !f.isPeer() || !f.kind.IsAdmin() {
		return "it needs a case in pkg/engine/compile"
	}
	if peers := f.kind.AdminSpec(o).Rules[f.direction][0].Peers; reflect.ValueOf(peers[0]).IsZero() {
		return fmt.Sprintf("the conversion of %s of this kind (clusterSpec, v1alpha1Sources, v1alpha1Destinations) loses it", f.direction)
	}
	return "peerFields in pkg/engine/compile has no entry"
}

// checkGates: a field of a proposal needs a gate, and compile and oracle agree about each.
func (f itemField) checkGates(t *testing.T, o compile.Object, everything compile.Features) {
	known, needed := !t.Failed(), false
	for _, g := range compile.Gates {
		without := everything
		*g.Field(&without) = false
		found := f.kind.Diagnose(o, without)
		needed = needed || len(found) > 0
		if faults := oracleFaults(t, o, without); known && len(found) > 0 != (len(faults) > 0) {
			t.Errorf("without the gate %s, compile finds %v and the oracle %v", g.Name, found, faults)
		}
	}
	if !f.proposed {
		return
	}
	if !needed {
		t.Errorf("it is proposed and needs a gate: peerFields in pkg/engine/compile has none for %s", f.direction)
	}
	if adds := f.kind.Adds(everything); !slices.Contains(adds, f.path()) {
		t.Errorf("it is proposed, and no gate adds it: %q", adds)
	}
}

// oracleFaults returns the faults that the oracle finds with the gates of features.
func oracleFaults(t *testing.T, o compile.Object, features compile.Features) []oracle.Fault {
	t.Helper()
	c := oracle.Cluster{CIDRGroups: []*proposed.CIDRGroup{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	for _, g := range compile.Gates {
		name := g.Name
		switch g.Name {
		case "Nodes":
			name = "NodePeers"
		case "CIDRGroups":
			name = "GroupPeers"
		case "PodNetworkReadiness": // of pods
			continue
		}
		gate := reflect.ValueOf(&c).Elem().FieldByName(name)
		if !gate.IsValid() {
			t.Fatalf("oracle.Cluster has no field for the gate %s", g.Name)
		}
		gate.SetBool(*g.Field(&features))
	}
	if p, ok := o.(*networkingv1.NetworkPolicy); ok {
		return oracle.Faults(c, p)
	}
	c.Add(o)
	return oracle.AdminFaults(c)[compile.KindOf(o).Name+"/"+o.GetName()]
}
