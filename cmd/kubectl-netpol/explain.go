package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/reachability"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/suggest"
	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/engine/clusterstate"
)

type explainOptions struct {
	agentOptions
	traffic traffic
	flows   bool
	records []string
	output  string

	protocolGiven bool
}

func newExplain(o *options) *cobra.Command {
	e := &explainOptions{agentOptions: agentOptions{options: o}}
	cmd := &cobra.Command{
		Use:   "explain SRC DST[:PORT] [--protocol PROTOCOL]",
		Short: "Explain whether one connection is allowed, and why",
		Long: `Explain whether SRC may connect to DST, and why: the policies that select each
endpoint, the rules that were evaluated, and for each of their items whether it
matched, or why not.

SRC and DST are pods (web-0), workloads (deploy/web), the pods behind a Service
(svc/db), each in the namespace of -n or as NAMESPACE/NAME, or addresses. Of several
pods one is explained, one that is not allowed if the pods differ. The port follows DST
(db:5432, [fd00::1]:443) or is that of --port. Without one, it is the target port of a
Service with one port, or the only port that the pods of DST declare.

With --flows, agents are asked how often they decided such a connection and how, and
whether the kernel remembers the verdict, so that it decides without the agent. That takes
the rights of the command flows.

With -o policy, the output is what to write: the smallest NetworkPolicies that would allow
it, for all pods of SRC and DST, or nothing if it is allowed. Standard error has the
answer, and what no NetworkPolicy can allow.

The exit code is 0 when the connection is allowed, 1 when it is not, also between
some of the pods only, and 2 when there is no answer.`,
		Example: `  kubectl-netpol explain shop/web shop/db:5432 -f ./manifests
  kubectl-netpol explain deploy/web svc/db -n shop
  kubectl-netpol explain 203.0.113.9 web -n shop --port http
  kubectl-netpol explain deploy/web default/svc/kubernetes -n shop -o policy
  kubectl-netpol explain deploy/web svc/db -n shop --flows`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("name a source and a destination, SRC DST: got %s", words.Count(len(args), "argument", "arguments"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return e.run(cmd, args[0], args[1]) },
	}
	e.traffic.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&e.flows, "flows", false, "also say what the agents recorded of the connection, and whether the kernel remembers the verdict")
	cmd.Flags().StringArrayVar(&e.records, "records", nil, "file of flow records to read for that instead of asking the agents: lines that flows -o json prints; - is standard input; may be repeated")
	e.addAgentFlags(cmd.Flags())
	cmd.Flags().StringVarP(&e.output, "output", "o", "text", "text, json, or policy: the NetworkPolicies that would allow it, for kubectl apply")
	return cmd
}

func (e *explainOptions) run(cmd *cobra.Command, src, dst string) error {
	if err := checkOutput("explain", e.output); err != nil {
		return err
	}
	if err := e.checkFlows(cmd); err != nil {
		return err
	}
	dst, err := e.takePort(dst)
	if err != nil {
		return err
	}
	port, family, err := e.parseTraffic(cmd)
	if err != nil {
		return err
	}
	e.named, e.templates = []string{src, dst}, e.output == "policy"
	in, err := e.read(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	e.printCaveats(cmd.ErrOrStderr())
	c := e.cluster(in)
	finder := e.sideFinder(c, in.Pods)
	from, fromNotes, err := finder.findClient(src)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	to, port, notes, err := e.findDestination(finder, dst, port)
	if err != nil {
		return err
	}
	if notes != nil && strings.Contains(dst, ":") {
		family = reachability.IPv6 // the family of the endpoint is that of the Service's address
	}
	answer := explainSides(c, c.Overview([]reachability.Side{from}, []reachability.Side{to}, port, family), family)
	exposures := e.exposed(c, in, &e.services, e.exposing, membersOf(to))
	answer.Notes = slices.Concat(fromNotes, notes, finder.refusedByBalancer(src, dst), answer.Notes, exposureNotes(exposures), sharedAddressNotes(in, membersOf(from, to)))
	if e.output == "policy" {
		wanted := &suggest.Connections{From: from.Members, To: to.Members, Port: port, Family: family}
		return e.printPolicy(cmd, in, &answer, wanted, "allow-"+nameInPolicy(src)+"-to-"+nameInPolicy(dst))
	}
	return e.print(cmd, c, &answer, port, family)
}

// takePort takes the port of a destination, such as db:5432, for that of --port, and returns the
// rest.
func (e *explainOptions) takePort(dst string) (string, error) {
	i := strings.LastIndexByte(dst, ':')
	if i < 0 || i == len(dst)-1 || isAddress(dst) {
		return dst, nil
	}
	name, bracketed := dst[:i], strings.HasPrefix(dst, "[")
	if bracketed {
		name = strings.TrimSuffix(name[1:], "]")
	}
	switch {
	case strings.Contains(name, ":") && !(bracketed && isAddress(name)): // an IPv6 address with a mistake
		return dst, nil
	case e.traffic.port != "":
		return "", fmt.Errorf("--port=%s: %s has a port already", e.traffic.port, dst)
	}
	e.traffic.port = dst[i+1:]
	return name, nil
}

// parseTraffic returns the port to explain, zero if it is that of DST, yet to be found.
func (e *explainOptions) parseTraffic(cmd *cobra.Command) (reachability.Port, reachability.Family, error) {
	e.protocolGiven = cmd.Flags().Changed("protocol")
	given := e.traffic
	missing := given.port == "" && !strings.EqualFold(given.protocol, "ICMP")
	if missing {
		given.port = "1" // any, to check the rest
	}
	port, family, err := given.parse()
	if missing {
		port = reachability.Port{}
	}
	return port, family, err
}

// findDestination returns the side that dst names, the port to explain, the only one of dst if none
// was given, and what to say of a Service behind whose address it is.
func (e *explainOptions) findDestination(finder *sideFinder, dst string, port reachability.Port) (to reachability.Side, _ reachability.Port, notes []string, err error) {
	if port != (reachability.Port{}) {
		to, port, notes, err = finder.findAt(dst, port)
		return to, port, notes, inDestination(err)
	}
	s := finder.serviceOf(dst)
	if s == nil || len(s.Spec.Ports) == 0 { // a headless Service, or another name for something
		if s == nil {
			to, err = finder.find(dst)
		} else {
			to, err = finder.behindPorts(s, nil)
		}
		if err == nil {
			port, err = e.onlyDeclared(finder, &to)
		}
		return to, port, nil, inDestination(err)
	}
	ports := e.ofProtocol(s.Spec.Ports)
	if len(ports) != 1 {
		of := "service " + s.Namespace + "/" + s.Name
		if len(ports) == 0 {
			err = fmt.Errorf("--port is missing, and %s has none of %s", of, strings.ToUpper(e.traffic.protocol))
		} else {
			err = missingPort(of, servicePorts(ports))
		}
		return to, port, nil, inDestination(err)
	}
	if to, err = finder.behindPorts(s, ports); err != nil {
		return to, port, nil, inDestination(err)
	}
	port, to.Ports = to.Ports[0], nil
	t := &translated{Service: s, port: ports[0], what: fmt.Sprintf("policies see what stands behind port %d of service %s/%s", ports[0].Port, s.Namespace, s.Name)}
	return to, port, finder.notes(t, &to, port), nil
}

// ofProtocol returns the ports of --protocol, all if it is not given.
func (e *explainOptions) ofProtocol(ports []corev1.ServicePort) []corev1.ServicePort {
	return slices.DeleteFunc(slices.Clone(ports), func(p corev1.ServicePort) bool {
		return e.protocolGiven && !strings.EqualFold(protocolOf(&p), e.traffic.protocol)
	})
}

// onlyDeclared returns the port that the pods of a side declare, an error if it is not one.
func (e *explainOptions) onlyDeclared(finder *sideFinder, to *reachability.Side) (reachability.Port, error) {
	declared := e.ofProtocol(finder.declared(to))
	other := func(p corev1.ServicePort) bool {
		return p.Port != declared[0].Port || protocolOf(&p) != protocolOf(&declared[0])
	}
	if len(declared) == 0 || slices.ContainsFunc(declared, other) {
		return reachability.Port{}, missingPort(to.String(), finder.declaredPorts(to))
	}
	return reachability.ParsePort(fmt.Sprint(declared[0].Port), protocolOf(&declared[0]))
}

func inDestination(err error) error {
	if err != nil {
		err = fmt.Errorf("destination: %w", err)
	}
	return err
}

// missingPort is the error for a destination without a port, with those to choose from.
func missingPort(of string, ports []string) error {
	if len(ports) == 0 {
		return errors.New("--port is missing")
	}
	return fmt.Errorf("--port is missing: %s has %s", of, strings.Join(ports, ", "))
}

// declaredPorts returns the ports that the pods of a side declare, "TCP 8080 (http)".
func (f *sideFinder) declaredPorts(s *reachability.Side) []string {
	return compacted(servicePorts(f.declared(s)))
}

// declared returns the ports that each of the pods of a side declares.
func (f *sideFinder) declared(s *reachability.Side) []corev1.ServicePort {
	members := membersOf(*s)
	var all []corev1.ServicePort
	for _, p := range f.pods {
		if !members[p.Namespace+"/"+p.Name] {
			continue
		}
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				all = append(all, corev1.ServicePort{Name: port.Name, Protocol: port.Protocol, Port: port.ContainerPort})
			}
		}
	}
	return all
}

func protocolOf(p *corev1.ServicePort) string {
	return cmp.Or(string(p.Protocol), string(corev1.ProtocolTCP))
}

// servicePorts returns the ports of a Service, "TCP 443 (https)".
func servicePorts(ports []corev1.ServicePort) []string {
	var all []string
	for i := range ports {
		text := fmt.Sprintf("%s %d", protocolOf(&ports[i]), ports[i].Port)
		if ports[i].Name != "" {
			text += " (" + ports[i].Name + ")"
		}
		all = append(all, text)
	}
	return all
}

// print prints an explanation, with what agents recorded of the connection if that was asked for.
func (e *explainOptions) print(cmd *cobra.Command, c *reachability.Cluster, answer *reachability.Explanation, port reachability.Port, family reachability.Family) (err error) {
	switch {
	case e.flows || len(e.records) > 0:
		err = e.printWithFlows(cmd, c, answer, port, family)
	case e.output == "json":
		err = printJSON(cmd.OutOrStdout(), e.withCaveats(*answer))
	default:
		err = printExplanation(cmd.OutOrStdout(), answer)
	}
	if err == nil && answer.Depends != nil {
		return errDepends
	}
	if err == nil && !answer.Allowed {
		return errNo
	}
	return err
}

// printPolicy prints the policies that connections lack, and on standard error what is allowed
// without them, and what they cannot allow.
func (e *explainOptions) printPolicy(cmd *cobra.Command, in clusterstate.Input, answer *reachability.Explanation, wanted *suggest.Connections, name string) error {
	s, err := suggest.Allow(suggest.Input{Cluster: in, PodRanges: e.ranges, Selectors: e.selectors, Behind: e.services.backends}, wanted, name)
	if err != nil {
		return err
	}
	text, err := s.YAML()
	if err != nil {
		return err
	}
	notes := []string{fmt.Sprintf("%s -> %s, %s: %s", answer.From, answer.To, strings.TrimSpace(answer.Protocol+" "+answer.Port), verdict(answer.Allowed))}
	notes = append(notes, answer.Notes...)
	for _, u := range s.Uncovered {
		notes = append(notes, fmt.Sprintf("Not to be allowed by a NetworkPolicy: %s: %s", u.Flow, u.Reason))
	}
	for _, note := range append(notes, s.Notes...) {
		fmt.Fprintln(cmd.ErrOrStderr(), note)
	}
	if len(s.Policies)+len(s.Uncovered) == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "No policy is needed.")
	}
	if _, err := io.WriteString(cmd.OutOrStdout(), text); err != nil {
		return err
	}
	if !answer.Allowed {
		return errNo
	}
	return nil
}

// nameInPolicy returns what a side is called in the name of a policy.
func nameInPolicy(side string) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(side[strings.LastIndex(side, "/")+1:])
}

// printWithFlows prints the explanation and what agents recorded of the connection.
func (e *explainOptions) printWithFlows(cmd *cobra.Command, c *reachability.Cluster, answer *reachability.Explanation, port reachability.Port, family reachability.Family) error {
	records, err := e.recorded(cmd)
	if err != nil {
		return err
	}
	records, err = recordsAbout(records, c, answer, port, family)
	if err != nil {
		return err
	}
	w := cmd.OutOrStdout()
	if e.output == "json" {
		return printJSON(w, e.withCaveats(explainedFlows{*answer, records}))
	}
	if err := printExplanation(w, answer); err != nil {
		return err
	}
	return printFlows(w, records)
}

// explainSides explains a connection between two pods of the only cell of o. It prefers a denied one.
func explainSides(c *reachability.Cluster, o *reachability.Overview, family reachability.Family) reachability.Explanation {
	from, to := &o.From[0], &o.To[0]
	p := o.Partial(0, 0)
	pair, denied := p.With, p.Pairs-p.Reaching
	if p.Without[0] != "" {
		pair = p.Without
	} else if o.Every(0, 0).Empty() {
		denied = p.Pairs
	}
	src, dst := member(from, pair[0]), member(to, pair[1])
	answer := c.Explain(src, dst, o.Port, family)
	answer.Depends = c.Depends(src, dst, o.Port, family)
	switch {
	case answer.Depends != nil:
	case pair[0] == pair[1] && o.Every(0, 0).Empty() && answer.Allowed:
		answer.Notes = append(answer.Notes, fmt.Sprintf("%s has one pod; another one of it would be denied", from))
	case len(membersOf(*from))*len(membersOf(*to)) > 1:
		answer.Notes = append(answer.Notes, fmt.Sprintf("of %s from %s to %s, %d are allowed and %d denied; this is one of them",
			words.Count(p.Pairs, "connection", "connections"), from, to, p.Pairs-denied, denied))
	}
	return answer
}

// member returns the member of a side with that label.
func member(s *reachability.Side, name string) *reachability.Endpoint {
	i := slices.IndexFunc(s.Members, func(e reachability.Endpoint) bool { return e.Label() == name })
	return &s.Members[i]
}

// printJSON writes v indented.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func printExplanation(w io.Writer, e *reachability.Explanation) error {
	var out strings.Builder
	what := strings.TrimSpace(e.Protocol + " " + e.Port)
	answer := verdict(e.Allowed)
	if e.Depends != nil {
		answer = "depends on addresses that are not known: " + strings.Join(e.Depends, "; ") + "\nBelow is a case in which it is " + answer
	}
	fmt.Fprintf(&out, "%s -> %s, %s: %s\n%s.\n", e.From, e.To, what, answer, sentence(e.Reason))
	for _, note := range e.Notes {
		fmt.Fprintf(&out, "Note: %s.\n", note)
	}
	for i := range e.Directions {
		printCourse(&out, &e.Directions[i])
	}
	if would := e.IfEnforced; would != nil {
		fmt.Fprintf(&out, "\nIf audited policies were enforced: %s\n%s.\n", verdict(would.Allowed), sentence(would.Reason))
		for i := range would.Directions {
			printCourse(&out, &would.Directions[i])
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func printCourse(out *strings.Builder, c *reachability.Trace) {
	location := c.Address
	if c.Node != "" {
		location += " on node " + c.Node
	}
	fmt.Fprintf(out, "\n%s of %s (%s): %s\n  %s.\n", sentence(c.Direction), c.Subject, location, verdict(c.Allowed), sentence(c.Reason))
	if len(c.Policies) > 0 {
		fmt.Fprintf(out, "  Selected by %s.\n", strings.Join(c.Policies, ", "))
	}
	for _, t := range c.Tiers {
		fmt.Fprintf(out, "  Tier %s:\n", t.Name)
		for i := range t.Rules {
			printRule(out, &t.Rules[i])
		}
		fmt.Fprintf(out, "    %s.\n", sentence(t.Outcome))
	}
	for _, f := range c.Findings {
		fmt.Fprintf(out, "  Not honoured: %s\n", findingLine(f))
	}
}

func printRule(out *strings.Builder, r *reachability.Rule) {
	answer := "does not match"
	switch {
	case r.Skipped:
		answer = "is skipped"
	case r.Matches:
		answer = "matches: " + r.Action
	}
	fmt.Fprintf(out, "    %s %s %s\n", r.Policy, r.Field, answer)
	for _, items := range [][]reachability.Item{r.Peers, r.Ports} {
		for _, item := range items {
			field := strings.TrimPrefix(item.Field, r.Field+".")
			if item.Matches {
				fmt.Fprintf(out, "      yes  %s: %s\n", field, item.Means)
			} else {
				fmt.Fprintf(out, "      no   %s: %s; %s\n", field, item.Means, item.Why)
			}
		}
	}
}

func verdict(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}

// sentence capitalises s unless it begins with a name.
func sentence(s string) string {
	word, _, _ := strings.Cut(s, " ")
	word = strings.TrimRight(word, ":")
	if s == "" || strings.ContainsAny(word, "/.:-0123456789") {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
