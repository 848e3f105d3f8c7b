package netpol

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// FolderScenario returns the scenario of a loaded state. It applies all policies at once
// and expects what the backend reference observes with the pods' addresses at that time.
// The reference must refuse nothing and be Immediate.
func FolderScenario(ctx context.Context, name string, state *State, reference Backend) (Scenario, error) {
	model := Model{start: state}
	if err := reference.Apply(ctx, state.Clone()); err != nil {
		return Scenario{}, fmt.Errorf("apply to the reference: %w", err)
	}
	return Scenario{Name: name, Model: model, Needs: state.kinds(), Steps: []Step{{
		Change: func(s *State) { s.Apply(state.AllPolicies()...) },
		Want: func(r *Reachability) {
			if err := r.expectAsSeen(ctx, reference); err != nil {
				panic(fmt.Sprintf("netpol: the reference failed: %v", err))
			}
		},
	}}}, nil
}

// expectAsSeen expects what reference observes.
func (r *Reachability) expectAsSeen(ctx context.Context, reference Backend) error {
	if err := reference.Apply(ctx, r.state.Clone()); err != nil {
		return err
	}
	connections := allConnections(r.state, r.traffic)
	outcomes, err := reference.Probe(ctx, connections)
	if err != nil {
		return err
	}
	for i, c := range connections {
		r.tables[c.Traffic].SetOutcome(c.From, c.To, outcomes[i])
	}
	return nil
}

// allConnections returns every pair of a state's endpoints for each traffic.
func allConnections(state *State, traffic []Traffic) []Connection {
	var all []Connection
	names := state.Endpoints()
	for _, t := range traffic {
		for _, from := range names {
			for _, to := range names {
				all = append(all, Connection{From: from, To: to, Traffic: t})
			}
		}
	}
	return all
}

// startState returns the loaded cluster without its policies.
func startState(loaded *State) *State {
	s := loaded.Clone()
	s.withoutPolicies()
	return s
}

// declared returns TCP and the protocols of the ports that pods declare.
func declared(s *State) []corev1.Protocol {
	protocols := []corev1.Protocol{corev1.ProtocolTCP}
	for _, pod := range s.Pods {
		for _, container := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
			for _, port := range container.Ports {
				if port.Protocol != "" && !slices.Contains(protocols, port.Protocol) {
					protocols = append(protocols, port.Protocol)
				}
			}
		}
	}
	return protocols
}
