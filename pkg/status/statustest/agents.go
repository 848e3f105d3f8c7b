package statustest

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
)

// The namespace of the agents, and a selector for them.
const (
	AgentsNamespace = "kube-system"
	AgentsSelector  = "app=agent"
)

// Agents are what the agents of nodes say is in force.
type Agents struct {
	usual inforce.Answer // of nodes without a Set

	mu      sync.Mutex
	answers map[string]inforce.Answer // by node
	errs    map[string]error
	asked   int
}

// NewAgents returns agents that all give an answer, and n nodes, node-1 and so on, with the agents' pods.
func NewAgents(n int, usual inforce.Answer) (*Agents, []runtime.Object) {
	var objects []runtime.Object
	for i := range n {
		name := fmt.Sprint("node-", i+1)
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: AgentsNamespace, Name: "agent-" + name, Labels: map[string]string{"app": "agent"}},
			Spec:       corev1.PodSpec{NodeName: name},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}
	return &Agents{usual: usual, answers: map[string]inforce.Answer{}, errs: map[string]error{}}, objects
}

// Ask answers for the agent of a pod.
func (a *Agents) Ask(_ context.Context, pod *corev1.Pod) (*inforce.Answer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	node := pod.Spec.NodeName
	if err := a.errs[node]; err != nil {
		return nil, err
	}
	answer, ok := a.answers[node]
	if !ok {
		answer = a.usual
	}
	if answer.Node == "" {
		answer.Node = node
	}
	return &answer, nil
}

// Set changes what the agent of a node answers. An answer without a node is that of the node.
func (a *Agents) Set(node string, answer inforce.Answer, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers[node], a.errs[node] = answer, err
}

// TakeAsked returns how many agents were asked since the last call.
func (a *Agents) TakeAsked() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.asked
	a.asked = 0
	return n
}
