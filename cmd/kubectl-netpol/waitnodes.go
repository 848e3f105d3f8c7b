package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/words"
	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// nodeAnswer is what the agents of a node say.
type nodeAnswer struct {
	node    string
	answers []*inforce.Answer // two while one agent takes over from the other
	err     error             // of one that does not answer
}

// askNodes asks the agents of all nodes.
func (w *waiting) askNodes(ctx context.Context) ([]nodeAnswer, error) {
	names, err := w.cluster.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	pods, run, err := w.find(ctx)
	if err != nil {
		return nil, err
	}
	index := map[string]int{}
	nodes := make([]nodeAnswer, len(names))
	for i, name := range names {
		index[name], nodes[i].node = i, name
	}
	some := false
	for _, a := range askWithin(ctx, waitAgentTimeout, pods, run, []string{agentCommand, "flows", noFlows}) {
		i, ok := index[a.node]
		if !ok {
			continue // it is starting on a node that is new, or ends on one that is gone
		}
		switch {
		case a.failed():
			nodes[i].err = a.err
		case a.records[0].State == nil || a.records[0].InForce == nil:
			nodes[i].err = errors.New("its agent is an older version, which does not say what is in force")
		default:
			nodes[i].answers, some = append(nodes[i].answers, a.records[0].InForce), true
		}
	}
	if !some {
		return nil, errors.New("no agent says what is in force")
	}
	return nodes, nil
}

// lacks returns why a policy is not in force on the node, nil if it is. known is false if that is not
// known.
func (n *nodeAnswer) lacks(needs map[string]string) (known bool, err error) {
	for _, a := range n.answers {
		if err = allInForce(a, needs); err == nil {
			return true, nil
		}
	}
	switch {
	case err != nil:
		return true, err
	case n.err != nil:
		return false, n.err
	}
	return true, errors.New("no agent runs there")
}

func allInForce(a *inforce.Answer, needs map[string]string) error {
	for kind, version := range needs {
		err := a.Check(kind, version)
		if err != nil {
			return err
		}
	}
	return nil
}

// byNodes says on which nodes a policy is in force.
func (w *waiting) byNodes(ctx context.Context, p awaited, o *unstructured.Unstructured, nodes []nodeAnswer) (enforcement, error) {
	needs := map[string]string{p.kind.Name: o.GetResourceVersion()}
	var namespace metav1.Object
	if p.kind.Namespaced {
		ns, err := w.cluster.Namespace(ctx, p.namespace)
		if err != nil {
			return enforcement{}, fmt.Errorf("namespace %s, which may say that %s is audited: %w", p.namespace, p, err)
		}
		namespace, needs[compile.KindNamespace.Name] = ns, ns.GetResourceVersion()
	}
	if compile.Audits(o, namespace) {
		return enforcement{known: true, text: "it is audited, and not enforced"}, nil
	}
	e := enforcement{inForce: true}
	var lacking inforce.Lacking
	for i := range nodes {
		known, err := nodes[i].lacks(needs)
		if err != nil {
			e.inForce, e.known = false, e.known || known
			lacking.Add(nodes[i].node, err)
		}
	}
	e.text = fmt.Sprintf("in force on %d of %s", len(nodes)-lacking.Nodes, words.Count(len(nodes), "node", "nodes"))
	if lacking.Nodes > 0 {
		e.text += "; not on " + lacking.String()
	}
	return e, nil
}

// conditionsAnnotation has the conditions of objects without a status.
const conditionsAnnotation = compile.AnnotationDomain + "conditions"

// enforcedCondition returns the Enforced condition of a policy, nil if there is none. Its type may have a
// prefix.
func enforcedCondition(o *unstructured.Unstructured) *metav1.Condition {
	all := conditions(o)
	for i := range all {
		if t := all[i].Type; t == "Enforced" || strings.HasSuffix(t, "/Enforced") {
			return &all[i]
		}
	}
	return nil
}

// conditions returns the conditions of a policy, in its status and in its annotation.
func conditions(o *unstructured.Unstructured) (all []metav1.Condition) {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, item := range list {
		fields, ok := item.(map[string]any)
		if !ok {
			continue
		}
		var c metav1.Condition
		if runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &c) == nil {
			all = append(all, c)
		}
	}
	var annotated []metav1.Condition
	if json.Unmarshal([]byte(o.GetAnnotations()[conditionsAnnotation]), &annotated) == nil {
		all = append(all, annotated...)
	}
	return all
}

// liveCluster returns the cluster of the kubeconfig.
func (w *waitOptions) liveCluster() (waitCluster, error) {
	c, err := w.options.connect()
	if err != nil {
		return nil, err
	}
	return liveWait{c.client, c.objects}, nil
}

// contextNamespace returns the namespace of the kubeconfig's context, empty if there is none.
func (w *waitOptions) contextNamespace() string {
	namespace, _, err := w.clientConfig().Namespace()
	if err != nil {
		return ""
	}
	return namespace
}

// liveWait is a waitCluster.
type liveWait struct {
	client   kubernetes.Interface
	policies dynamic.Interface
}

func (l liveWait) Policy(ctx context.Context, kind *compile.Kind, namespace, name string) (*unstructured.Unstructured, error) {
	var errs []error
	for _, r := range kind.Resources() { // the server may serve an older version only
		o, err := l.policies.Resource(r).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return o, nil
		}
		errs = append(errs, err)
	}
	return nil, errs[0]
}

func (l liveWait) Namespace(ctx context.Context, name string) (metav1.Object, error) {
	return l.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
}

func (l liveWait) Nodes(ctx context.Context) ([]string, error) {
	list, err := l.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	return names, nil
}
