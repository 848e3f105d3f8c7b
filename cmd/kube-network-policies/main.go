// Command kube-network-policies enforces Kubernetes network policies on its node.
// "kube-network-policies probe" asks an agent for its health, "kube-network-policies flows" for
// its flow records, and "kube-network-policies cleanup" removes what an agent leaves behind.
package main

import (
	"os"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/cmd/internal/removedflags"
)

const agentName = "kube-network-policies"

const usage = `Usage: %s [flags]

Commands:
  kube-network-policies                 Enforce network policies on this node.
                                        Example: kube-network-policies --manifests ./cluster
  kube-network-policies cleanup         Remove what an agent leaves in the kernel and on the disk. Pods are then not isolated.
                                        Example: kube-network-policies cleanup --wait
  kube-network-policies probe           Exit with status 0 if the agent at a probe socket is alive (livez) or ready (readyz), or print its metrics (metrics) or what the kernel has of its table (table).
                                        Example: kube-network-policies probe readyz
  kube-network-policies flows           Print what the agent at a probe socket decided lately, as JSON; kubectl netpol flows reads all agents.
                                        Example: kube-network-policies flows --denied
  kube-network-policies key             Make the key that proves an agent to other nodes, and publish it in the status of its pod, as an init container.
                                        Example: kube-network-policies key
  kube-network-policies version         Print version, commit, build date, Go version and platform.
                                        Example: kube-network-policies version

A wrong flag or value is an error before anything starts: the exit status is 2, and 1 after any later error.

Flags:
%s`

var program = command.Program{
	Name:  agentName,
	Usage: usage,
	Commands: map[string]func() command.Command{
		"":          func() command.Command { return newOptions() },
		cleanupName: func() command.Command { return newCleanupOptions() },
		probeName:   func() command.Command { return newProbeOptions() },
		flowsName:   func() command.Command { return newFlowsOptions() },
		keyName:     func() command.Command { return newKeyOptions() },
	},
	Removed:         map[string]removedflags.Table{"": removedFlags},
	RemovedCommands: removedCommands,
}

func main() { os.Exit(program.Run(os.Args[1:])) }
