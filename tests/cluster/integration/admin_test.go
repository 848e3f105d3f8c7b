package integration

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/controlplane"
	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/crds"
)

// adminFlags enable the conditions of all kinds.
var adminFlags = []string{"--admin-policies"}

// asAdminWriter returns the rights of the status writer for administrators' policies.
func asAdminWriter(t *testing.T, plane *controlplane.ControlPlane) *rest.Config {
	t.Helper()
	installAdmin(t, plane)
	config, _ := account(t, plane, namespace, statusWriter)
	return config
}

// adminPolicy is an administrator's policy with the expected status.
type adminPolicy struct {
	kind   string // as kubectl abbreviates it: anp, banp, cnp
	name   string
	spec   string // without what is required and the policy is not about
	want   string
	fields []string // that the message names
}

// manifest is the policy as its author writes it.
func (p adminPolicy) manifest() string {
	subject := "subject: {namespaces: {}}, "
	if strings.HasPrefix(p.spec, "subject:") {
		subject = ""
	}
	return adminManifest(p.kind, p.name, subject+p.spec)
}

// adminManifest is an administrator's policy in one line of YAML.
func adminManifest(kind, name, spec string) string {
	head := map[string]string{
		"anp":  "apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, spec: {priority: 7, ",
		"banp": "apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy, spec: {",
		"cnp":  "apiVersion: policy.networking.k8s.io/v1beta1, kind: ClusterNetworkPolicy, spec: {tier: Admin, priority: 7, ",
	}[kind]
	return fmt.Sprintf("{metadata: {name: %s}, %s%s}}", name, head, spec)
}

// shown waits until kubectl shows the expected status.
func (p adminPolicy) shown(k *kubectl) {
	k.t.Helper()
	conditions := k.shows(true, p.want, p.kind, p.name)
	for _, field := range p.fields {
		if message := conditions["PartialFailure"].Message + conditions["Failure"].Message; !strings.Contains(message, field) {
			k.t.Errorf("%s %s: %q does not name %s", p.kind, p.name, message, field)
		}
	}
}

// Policies of each kind with the conditions that they get.
var (
	fineANP = adminPolicy{"anp", "fine", `egress: [{action: Pass, to: [{namespaces: {}}], ports: [{portRange: {start: 80, end: 90}}]}]`, clean, nil}
	// The schemas of v1alpha1 accept all of these.
	rangeANP = adminPolicy{"anp", "range", `ingress: [{action: Deny, from: [{namespaces: {}}], ports: [{portNumber: {port: 80}}, {portRange: {start: 90, end: 80}}]}]`,
		partial("InvalidPort"), []string{"spec.ingress[0].ports[1].portRange.end: ", "denies its peers on every port"}}
	protocolANP = adminPolicy{"anp", "protocol", `ingress: [{action: Allow, from: [{namespaces: {}}], ports: [{portNumber: {protocol: ICMP, port: 1}}]}]`,
		partial("UnsupportedProtocol"), []string{`spec.ingress[0].ports[0].portNumber.protocol: protocol "ICMP"`, "matches nothing"}}
	namesANP = adminPolicy{"anp", "names", `egress: [{action: Deny, to: [{domainNames: ["*.example.com"]}]}]`,
		unsupported, []string{"spec.egress[0].to[0].domainNames: ", "denies everything"}}
	// The schema of 0.1.5 accepts it as an address.
	garbageANP = adminPolicy{"anp", "garbage", `egress: [{action: Allow, to: [{networks: ["1.2.3.4", "10.0.0.0/8"]}]}, {action: Deny, to: [{networks: ["300.0.0.0/8"]}]}]`,
		partial("InvalidCIDR"), []string{"spec.egress[0].to[0].networks[0]: ", "spec.egress[1].to[0].networks[0]: "}}

	// No schema validates labels.
	emptyANP = adminPolicy{"anp", "empty", `subject: {namespaces: {matchLabels: {team: "a b"}}}`,
		failed("InvalidSelector"), []string{"spec.subject.namespaces: ", "selects no pod"}}

	fineBANP    = adminPolicy{"banp", "default", `ingress: [{action: Deny, from: [{namespaces: {}}]}]`, clean, nil}
	rangeBANP   = adminPolicy{"banp", "default", `ingress: [{action: Allow, from: [{namespaces: {}}], ports: [{portRange: {start: 90, end: 80}}]}]`, partial("InvalidPort"), []string{"spec.ingress[0].ports[0].portRange.end: "}}
	garbageBANP = adminPolicy{"banp", "default", `egress: [{action: Deny, to: [{networks: ["300.0.0.0/8"]}]}]`, partial("InvalidCIDR"), []string{"spec.egress[0].to[0].networks[0]: "}}

	fineCNP  = adminPolicy{"cnp", "fine", `ingress: [{action: Accept, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {range: {start: 80, end: 90}}}}]}]`, clean, nil}
	namedCNP = adminPolicy{"cnp", "named", `egress: [{action: Deny, to: [{networks: ["10.0.0.0/8"]}], protocols: [{destinationNamedPort: http}]}]`,
		partial("InvalidPort"), []string{"spec.egress[0].protocols[0].destinationNamedPort: ", "denies its peers on every port"}}
	emptyCNP = adminPolicy{"cnp", "empty", `subject: {pods: {podSelector: {matchLabels: {team: "a b"}}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]`,
		failed("InvalidSelector"), []string{"spec.subject.pods: "}}
	nodesCNP = adminPolicy{"cnp", "nodes", `egress: [{action: Deny, to: [{nodes: {}}]}]`, unsupported, []string{"spec.egress[0].to[0].nodes: the field is switched off by --feature-gates=Nodes=false"}}
	namesCNP = adminPolicy{"cnp", "names", `egress: [{action: Pass, to: [{domainNames: ["example.com"]}]}]`, unsupported, []string{"spec.egress[0].to[0].domainNames: "}}
)

// Conditions tell administrators which parts of a policy its schema accepts but cannot be
// enforced as written.
func TestAdminPolicyConditions(t *testing.T) {
	for _, tc := range []struct {
		release  crds.Release
		channel  crds.Channel
		servers  []*server
		policies []adminPolicy
	}{
		{crds.V015, crds.Standard, releases, []adminPolicy{fineANP, rangeANP, protocolANP, emptyANP, fineBANP, rangeBANP}},
		{crds.V015, crds.Experimental, releases, []adminPolicy{fineANP, rangeANP, garbageANP, garbageBANP}},
		{crds.V017, crds.Standard, []*server{newest}, []adminPolicy{fineANP, rangeANP, protocolANP, fineBANP, rangeBANP}},
		{crds.V017, crds.Experimental, []*server{newest}, []adminPolicy{fineANP, rangeANP, namesANP, fineBANP}},
		{crds.V020, crds.Standard, []*server{newest}, []adminPolicy{fineCNP, namedCNP, emptyCNP}},
		{crds.V020, crds.Experimental, []*server{newest}, []adminPolicy{fineCNP, nodesCNP, namesCNP}},
		{crds.V030, crds.Standard, []*server{newest}, []adminPolicy{fineCNP, emptyCNP}},
		{crds.V030, crds.Experimental, []*server{newest}, []adminPolicy{fineCNP, nodesCNP, namesCNP}},
	} {
		t.Run(fmt.Sprint(tc.release, " ", tc.channel), func(t *testing.T) {
			on(t, tc.servers, func(t *testing.T, plane *controlplane.ControlPlane) {
				define(t, plane, tc.release, tc.channel)
				startWriter(t, asAdminWriter(t, plane), append(adminFlags, "--feature-gates=Nodes=false")...)
				k := newKubectl(t, plane.Admin())
				for _, p := range tc.policies {
					k.apply(tc.release.Versioned(p.manifest()))
					p.shown(k)
				}
			})
		})
	}
}

// The agent works without kinds that are not defined, watches them as soon as they
// are, and removes their policies with their definitions.
func TestAgentFollowsDefinitions(t *testing.T) {
	for _, tc := range []struct {
		release          crds.Release
		servers          []*server
		kind, name, deny string // whose pods
	}{
		{crds.V015, releases, "anp", "deny", "web"},
		{crds.V017, []*server{newest}, "banp", "default", "client"},
		{crds.V020, []*server{newest}, "cnp", "deny", "web"},
		{crds.V030, []*server{newest}, "cnp", "deny", "web"},
	} {
		t.Run(fmt.Sprint(tc.release, " ", tc.kind), func(t *testing.T) {
			on(t, tc.servers, func(t *testing.T, plane *controlplane.ControlPlane) {
				installAdmin(t, plane)
				s := newShop(t, plane)
				config, _ := account(t, plane, namespace, agent)
				v := newViewOf(t, config, s.node, allKinds)
				v.eventually(s.guarded()...)
				k := newKubectl(t, plane.Admin())
				forbidden := denied(s.client, s.web, port)
				if tc.deny == "client" {
					forbidden = denied(s.visitor, s.client, port)
				}
				subject := fmt.Sprintf("subject: {pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %s}}, podSelector: {matchLabels: {app: %s}}}}", s.namespace, tc.deny)
				for range 2 {
					define(t, plane, tc.release, crds.Standard)
					k.apply(tc.release.Versioned(adminManifest(tc.kind, tc.name, subject+", ingress: [{action: Deny, from: [{namespaces: {}}]}]")))
					v.eventually(forbidden)
					undefine(t, plane, tc.release, crds.Standard)
					v.eventually(s.guarded()...)
				}
			})
		})
	}
}

// The status writer does the same, and only logs that it waits.
func TestWriterWaitsForDefinitions(t *testing.T) {
	plane := newest.start(t)
	c := newCluster(t, plane)
	k := newKubectl(t, plane.Admin())
	w := startWriter(t, asAdminWriter(t, plane), append(adminFlags, "--feature-gates=EndPort=false")...)
	k.apply(nodePorts(c.namespace, "range"))
	shows(k, c.namespace, "range", false, unsupported)
	const complaints = `netpol_status_conditions{kind="AdminNetworkPolicy",reason="InvalidPort",type="PartialFailure"}`
	for range 2 {
		define(t, plane, crds.V017, crds.Standard)
		k.apply(rangeANP.manifest())
		rangeANP.shown(k)
		undefine(t, plane, crds.V017, crds.Standard)
		eventually(t, func() string {
			if got := w.metric(complaints); got != "" && got != "0" {
				return "findings about deleted policies: " + got
			}
			return ""
		})
	}
	w.stop()
	for line := range strings.Lines(w.log.String()) {
		// The cluster has nodes and no agents.
		if (strings.HasPrefix(line, "E") || strings.HasPrefix(line, "W")) && !strings.Contains(line, "no agent runs there") {
			t.Errorf("the log says %s", line)
		}
	}
}
