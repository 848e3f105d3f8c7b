package main

import "sigs.k8s.io/kube-network-policies/cmd/internal/removedflags"

const agentsSay = "the condition Denials is not written any more, the command flows of the agent shows what is denied: remove it"

// removedFlags are flags of earlier versions.
var removedFlags = removedflags.Both(removedflags.Table{
	"cleanup":                "write the command status-writer cleanup",
	"denials-ca-file":        agentsSay,
	"denials-dir":            agentsSay,
	"denials-port":           agentsSay,
	"denials-token-file":     agentsSay,
	"events":                 "Events are always created: remove it, and the right to create Events if you want none",
	"leader-elect-namespace": "it is always the namespace of the writer's pod: remove it",
	"status-burst":           "it is always 20 writes: remove it",
	"status-qps":             "it is always 5 writes a second: remove it",
})
