package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
)

// knownFinding is what a finding of a baseline is recognised by. Lines and the places of rules
// in a policy are not part of it: they change with every edit above them.
type knownFinding struct {
	Rule string `json:"rule"`
	lint.Object
	Message string `json:"message"`
}

// readBaseline reads what check -o json has printed, and returns how often it has each finding.
func readBaseline(name string) (map[knownFinding]int, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var r struct {
		Findings *[]knownFinding `json:"findings"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("%s: not what check -o json prints: %w", name, err)
	}
	if r.Findings == nil {
		return nil, fmt.Errorf("%s: no findings in it: write it with check -o json", name)
	}
	known := map[knownFinding]int{}
	for _, f := range *r.Findings {
		known[f]++
	}
	return known, nil
}

// leaveOutKnown removes the findings of a baseline, each as often as it has it. It returns how
// many findings of the baseline are not there any more.
func (r *report) leaveOutKnown(known map[knownFinding]int) (gone int) {
	r.Findings = slices.DeleteFunc(r.Findings, func(f finding) bool {
		key := knownFinding{f.Rule, f.Object, f.Message}
		if known[key] == 0 {
			return false
		}
		known[key]--
		r.Known++
		return true
	})
	for _, n := range known {
		gone += n
	}
	return gone
}
