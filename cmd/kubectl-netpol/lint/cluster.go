package lint

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/exposure"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
	"sigs.k8s.io/kube-network-policies/pkg/base/printable"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// cluster is an Input with its indexes, and the findings so far.
type cluster struct {
	Input
	rule *Rule // being checked
	// besideAllowAll makes rules that allow everything a reason to call others redundant.
	besideAllowAll bool
	findings       []Finding

	namespaces map[string]*corev1.Namespace
	// pods are those that have not ended. Pods that no policy can distinguish are represented
	// by the first of them by name.
	pods        []*pod
	byNamespace map[string][]*pod
	withPods    []string            // the keys of byNamespace, sorted
	byLabel     map[podLabel][]*pod // also without the namespace
	labelled    map[podLabel][]*corev1.Namespace
	assumed     map[string]bool // of AssumedNamespaces
	near        *nearIndex      // of labels, built on first use
	workloads   map[podLabel][]*workloads.Labels
	expected    map[podLabel][]labels.Set    // of pods that the files do not have, built on first use
	others      map[[2]string]string         // what elsewhere has found, by the keys of its selectors
	services    map[string][]*corev1.Service // by namespace
	policies    []*compiled                  // ordered by kind, namespace and name
	admins      []*compiled                  // those of policies that are administrators'
	ofNamespace map[string][]*compiled       // the NetworkPolicies of policies by namespace
	// requiring are the NetworkPolicies by the first label that their pods must have, or by an
	// empty one, so that rules need not compare all policies with each other.
	requiring map[podLabel][]*compiled
	selected  map[string]*matched             // by reachability.SelectorKey
	reach     *reachability.Cluster           // of pods, built on first use
	endpoints map[*pod]*reachability.Endpoint // in reach, nil for pods without an address of their own
	inFront   map[*pod][]*corev1.Service      // the Services that select a pod
	exposed   []exposure.Exposure             // of pods, found on first use

	compared int // how often selectors were compared with labels
}

// podLabel is a label of a pod, in its namespace, or one of a namespace.
type podLabel struct{ namespace, key, value string }

// pod is a pod that represents all pods that no policy can distinguish from it.
type pod struct {
	object   *corev1.Pod
	endpoint policy.Endpoint
	host     bool // uses the network of its node
}

// matched is what a selector selects.
type matched struct {
	pods []*pod
	// hosts are host-network pods that it does not select although their labels match.
	hosts []*pod
	alike [2][][]*pod // pods by the direction of alike
}

func (p *pod) String() string { return p.object.Namespace + "/" + p.object.Name }

// compiled is a policy.
type compiled struct {
	*compile.Policy
	object compile.Object
	// network is the object if it is a NetworkPolicy.
	network *networkingv1.NetworkPolicy
	// subjects are the pods that it selects, and hosts the host-network pods that have the
	// same labels and are therefore not selected.
	subjects, hosts []*pod
	labels          map[string]values // allowed by the subject's podSelector
	position        int               // in cluster.policies
}

// selectsAllOf reports whether p selects all pods that o selects. Both are NetworkPolicies
// of one namespace.
func (p *compiled) selectsAllOf(o *compiled) bool { return includesAll(p.labels, o.labels) }

// ref names the policy in a message: "shop/db", or kind and name for a cluster-scoped
// policy.
func (p *compiled) ref() string { return p.Ref.String() }

// admin reports whether the policy is an administrator's.
func (p *compiled) admin() bool { return p.network == nil }

// id returns the object that findings name.
func (p *compiled) id() Object { return Object{p.Ref.Kind, p.Ref.Namespace, p.Ref.Name} }

// rules yields the rules of both directions.
func (p *compiled) rules(yield func(policy.Direction, *policy.Rule) bool) {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		for i := range p.Rules(d) {
			if !yield(d, &p.Rules(d)[i]) {
				return
			}
		}
	}
}

// isolates reports whether the policy is a NetworkPolicy that isolates in direction d.
func (p *compiled) isolates(d policy.Direction) bool { return !p.admin() && p.Applies(d) }

func newCluster(in Input) *cluster {
	c := &cluster{
		Input:       in,
		namespaces:  map[string]*corev1.Namespace{},
		byNamespace: map[string][]*pod{},
		byLabel:     map[podLabel][]*pod{},
		labelled:    map[podLabel][]*corev1.Namespace{},
		assumed:     map[string]bool{},
		workloads:   map[podLabel][]*workloads.Labels{},
		others:      map[[2]string]string{},
		ofNamespace: map[string][]*compiled{},
		requiring:   map[podLabel][]*compiled{},
		selected:    map[string]*matched{},
		endpoints:   map[*pod]*reachability.Endpoint{},
		inFront:     map[*pod][]*corev1.Service{},
		services:    map[string][]*corev1.Service{},
	}
	c.Pods, c.Nodes, c.Services = ordered(in.Pods), ordered(in.Nodes), ordered(in.Services)
	c.Namespaces = ordered(in.Namespaces)
	for _, ns := range c.Namespaces {
		c.namespaces[ns.Name] = ns
		for key, value := range ns.Labels {
			label := podLabel{key: key, value: value}
			c.labelled[label] = append(c.labelled[label], ns)
		}
	}
	for _, name := range c.AssumedNamespaces {
		c.assumed[name] = true
	}
	for i := range c.Workloads {
		w := &c.Workloads[i]
		for key, value := range w.Own {
			label := podLabel{w.Ref.Namespace, key, value}
			c.workloads[label] = append(c.workloads[label], w)
		}
	}
	for _, s := range c.Services {
		c.services[s.Namespace] = append(c.services[s.Namespace], s)
	}
	c.addPods()
	c.addPolicies()
	return c
}

// ordered returns objects sorted by namespace and name.
func ordered[O metav1.Object](objects []O) []O {
	return slices.SortedStableFunc(slices.Values(objects), func(a, b O) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
}

func (c *cluster) addPods() {
	seen := map[string]bool{}
	for _, o := range c.Pods {
		p := &pod{object: o, endpoint: compile.NewPod(o).Endpoint, host: o.Spec.HostNetwork}
		if compile.Ended(o) || seen[p.class()] {
			continue
		}
		seen[p.class()] = true
		if ns := c.namespaces[o.Namespace]; ns != nil {
			p.endpoint.NamespaceLabels = policy.NewLabels(ns.Labels)
		}
		c.pods = append(c.pods, p)
		c.byNamespace[o.Namespace] = append(c.byNamespace[o.Namespace], p)
		for k, v := range o.Labels {
			for _, namespace := range []string{o.Namespace, ""} {
				label := podLabel{namespace, k, v}
				c.byLabel[label] = append(c.byLabel[label], p)
			}
		}
	}
	c.withPods = slices.Sorted(maps.Keys(c.byNamespace))
}

// class is equal for pods that policies can distinguish only by their addresses.
func (p *pod) class() string {
	return fmt.Sprint(p.object.Namespace, "/", p.object.Labels, compile.NamedPorts(p.object), p.host, p.object.Spec.DNSPolicy, p.dualStack(), reachability.DeclaredPorts(p.object))
}

// dualStack reports whether the pod has addresses of both families.
func (p *pod) dualStack() bool {
	addrs := compile.Addresses(p.object)
	return slices.ContainsFunc(addrs, netip.Addr.Is4) && slices.ContainsFunc(addrs, netip.Addr.Is6)
}

func (c *cluster) addPolicies() {
	groups := compile.NewCIDRGroups(c.CIDRGroups)
	for _, o := range c.Policies {
		p := &compiled{Policy: compile.KindOf(o).Compile(o, c.Features, groups), object: o}
		p.network, _ = o.(*networkingv1.NetworkPolicy)
		if p.Subject != nil {
			p.subjects, p.hosts = c.podsAndHosts(p.Subject)
			p.labels = allowed(p.Subject.Pods)
		}
		c.policies = append(c.policies, p)
	}
	slices.SortStableFunc(c.policies, func(a, b *compiled) int {
		return cmp.Or(strings.Compare(a.Ref.Kind, b.Ref.Kind), strings.Compare(a.Ref.Namespace, b.Ref.Namespace), strings.Compare(a.Ref.Name, b.Ref.Name))
	})
	for i, p := range c.policies {
		p.position = i
		if p.admin() {
			c.admins = append(c.admins, p)
			continue
		}
		c.ofNamespace[p.Ref.Namespace] = append(c.ofNamespace[p.Ref.Namespace], p)
		required := podLabel{namespace: p.Ref.Namespace}
		for key, value := range p.required {
			required.key, required.value = key, value
			break
		}
		c.requiring[required] = append(c.requiring[required], p)
	}
}

// required yields the labels that all subjects have, in the order of their keys.
func (p *compiled) required(yield func(key, value string) bool) {
	for _, key := range slices.Sorted(maps.Keys(p.labels)) {
		v := p.labels[key]
		if v.absent || v.unlisted || len(v.listed) != 1 {
			continue
		}
		for value := range v.listed {
			if !yield(key, value) {
				return
			}
		}
	}
}

// maySelect returns, in order, the NetworkPolicies of a namespace except those that require
// another label than these.
func (c *cluster) maySelect(namespace string, labels iter.Seq2[string, string]) []*compiled {
	found := slices.Clone(c.requiring[podLabel{namespace: namespace}])
	for key, value := range labels {
		found = append(found, c.requiring[podLabel{namespace, key, value}]...)
	}
	slices.SortFunc(found, func(a, b *compiled) int { return a.position - b.position })
	return found
}

// withAllOf returns, in order, the NetworkPolicies that select all pods that p selects, p among
// them, except those that cannot be read.
func (c *cluster) withAllOf(p *compiled) []*compiled {
	may := c.ofNamespace[p.Ref.Namespace]
	if !p.contradictory() {
		may = c.maySelect(p.Ref.Namespace, p.required)
	}
	var found []*compiled
	for _, o := range may {
		if !unreadable(o) && o.selectsAllOf(p) {
			found = append(found, o)
		}
	}
	return found
}

// contradictory reports whether no value of some label is allowed.
func (p *compiled) contradictory() bool {
	for _, v := range p.labels {
		if v.empty() {
			return true
		}
	}
	return false
}

// podsAndHosts returns the pods that s selects, and the host-network pods that it does not
// select although their labels match. The caller must not change them.
func (c *cluster) podsAndHosts(s *policy.PodSelector) (pods, hosts []*pod) {
	selected := c.matching(s)
	return selected.pods, selected.hosts
}

// selects returns the pods that s selects. The caller must not change them.
func (c *cluster) selects(s *policy.PodSelector) []*pod { return c.matching(s).pods }

func (c *cluster) matching(s *policy.PodSelector) *matched {
	key := reachability.SelectorKey(s)
	if known := c.selected[key]; known != nil {
		return known
	}
	selected := &matched{}
	for _, p := range c.candidates(s) {
		c.compared++
		switch {
		case !s.Selects(&p.endpoint):
		case p.host:
			selected.hosts = append(selected.hosts, p)
		default:
			selected.pods = append(selected.pods, p)
		}
	}
	c.selected[key] = selected
	return selected
}

// namespacesOf returns the namespaces with pods whose labels s matches.
func (c *cluster) namespacesOf(s labels.Selector) []string {
	if s.Empty() {
		return c.withPods
	}
	return slices.DeleteFunc(c.namespacesMatching(s), func(name string) bool { return len(c.byNamespace[name]) == 0 })
}

// namespacesMatching returns the namespaces whose labels s matches, with or without pods.
func (c *cluster) namespacesMatching(s labels.Selector) []string {
	candidates := c.Namespaces
	requirements, _ := s.Requirements()
	for i := range requirements {
		if key, value, ok := reachability.ExactLabel(&requirements[i]); ok {
			candidates = c.labelled[podLabel{key: key, value: value}]
			break
		}
	}
	var names []string
	for _, ns := range candidates {
		c.compared++
		if s.Matches(labels.Set(ns.Labels)) {
			names = append(names, ns.Name)
		}
	}
	return names
}

// candidates returns the pods that s may select, in order. Indexes exclude most of the others.
func (c *cluster) candidates(s *policy.PodSelector) []*pod {
	if s.Namespace != "" {
		return c.labelledPods(s.Namespace, s.Pods, c.byNamespace[s.Namespace])
	}
	namespaces := c.namespacesOf(s.Namespaces)
	if anywhere := c.labelledPods("", s.Pods, c.pods); len(anywhere) < len(namespaces) || s.Namespaces.Empty() {
		return anywhere
	}
	var pods []*pod
	for _, ns := range namespaces {
		c.compared++
		pods = append(pods, c.labelledPods(ns, s.Pods, c.byNamespace[ns])...)
	}
	return pods
}

// labelledPods returns the pods with the rarest label that s demands, or all if it demands none.
// Without a namespace they are those of all.
func (c *cluster) labelledPods(namespace string, s labels.Selector, all []*pod) []*pod {
	requirements, _ := s.Requirements()
	for i := range requirements {
		if key, value, ok := reachability.ExactLabel(&requirements[i]); ok {
			if pods := c.byLabel[podLabel{namespace, key, value}]; len(pods) < len(all) {
				all = pods
			}
		}
	}
	return all
}

// evaluator returns the cluster that answers which connections are allowed. Pods without an
// address get a placeholder.
func (c *cluster) evaluator() *reachability.Cluster {
	if c.reach != nil {
		return c.reach
	}
	in := clusterstate.Input{Features: c.Features, Namespaces: c.Namespaces, Nodes: c.Nodes, CIDRGroups: c.CIDRGroups, Policies: c.Policies}
	for i, p := range c.pods {
		o := p.object
		if !p.host && len(compile.Addresses(o)) == 0 {
			o = o.DeepCopy()
			o.Status.PodIPs = workloads.Placeholders(i+1, true, true)
		}
		in.Pods = append(in.Pods, o)
	}
	c.reach = reachability.New(in, c.PodRanges...)
	return c.reach
}

// at returns the pod in evaluator, nil if it owns no address.
func (c *cluster) at(p *pod) *reachability.Endpoint {
	at, known := c.endpoints[p]
	if !known {
		if e, err := c.evaluator().Endpoint(p.String()); err == nil {
			at = &e
		}
		c.endpoints[p] = at
	}
	return at
}

// written reports whether the author set a field of p.
func (c *cluster) written(p *compiled, field string) bool {
	return c.Written == nil || c.Written(p.id(), field)
}

// find adds a finding about a policy. fix says what to write; the default is the rule's.
func (c *cluster) find(p *compiled, field, fix, format string, args ...any) *Finding {
	return c.findAt(p.id(), field, fix, format, args...)
}

func (c *cluster) findAt(o Object, field, fix, format string, args ...any) *Finding {
	c.findings = append(c.findings, Finding{
		Rule: c.rule.ID, Severity: c.rule.Severity, Object: o, Field: field,
		Message: printable.Text(fmt.Sprintf(format, args...)), Why: c.rule.Why, Fix: cmp.Or(fix, c.rule.Fix),
	})
	return &c.findings[len(c.findings)-1]
}

// ruleField returns the path of a rule.
func ruleField(d policy.Direction, r *policy.Rule) string {
	return fmt.Sprintf("spec.%v[%d]", d, r.Index)
}

// peerField returns the path of a rule's peer.
func peerField(d policy.Direction, r *policy.Rule, i int) string {
	return fmt.Sprintf("%s.%s[%d]", ruleField(d, r), compile.PeersField(d), i)
}

// portField returns the path of a rule's port.
func portField(p *compiled, d policy.Direction, r *policy.Rule, i int) string {
	return fmt.Sprintf("%s.%s[%d]", ruleField(d, r), p.Kind.PortsField, i)
}

// names lists at most three items in a message.
func names[T fmt.Stringer](all []T) string {
	var texts []string
	for _, one := range all {
		texts = append(texts, one.String())
	}
	return words.Few(texts, 3, ", ")
}
