package main

import "sigs.k8s.io/kube-network-policies/cmd/internal/removedflags"

// removedCommands are commands of earlier versions.
var removedCommands = map[string]string{
	"status-writer": "the status writer is a program of its own in the same image: run status-writer, in a container by command: [status-writer]",
}

// removedFlags are flags of earlier versions.
var removedFlags = removedflags.Both(removedflags.Table{
	"block-established":        "established connections that policies no longer allow are always blocked: remove it",
	"block-mark":               inMark,
	"cleanup":                  "write the command kube-network-policies cleanup, with --mark and --snapshot-cache as the agent has them",
	"cleanup-wait":             "write the command kube-network-policies cleanup --wait",
	"cni-cache-dir":            "write the folder as --pod-address-source=FOLDER; the agent is then not ready while it cannot be read",
	"divert":                   byKernel,
	"early-udp":                byKernel,
	"evaluation-memory":        "its size is fixed: remove it",
	"fail-open-internal-error": "write --fail-open=internal-error",
	"fail-open-queue-full":     "write --fail-open=queue-full",
	"fail-open-unknown-packet": "write --fail-open=unknown-packet",
	"max-crashes":              "the kubelet starts the agent again: remove it",
	"max-pod-watches":          allPods,
	"nfqueue-count":            "it is always the number of CPUs, at most 4: remove it",
	"otlp-ca-file":             collectorsRead,
	"otlp-endpoint":            collectorsRead,
	"otlp-interval":            collectorsRead,
	"pod-share":                "it is always 1000 packets a second: remove it",
	"pod-watches":              allPods,
	"remember-mark":            inMark,
	"snapshot-cache-max-age":   "it is always 24h: remove it",
})

const (
	allPods        = "all pods are watched: remove it"
	byKernel       = "it always depends on the kernel: remove it"
	collectorsRead = "an OpenTelemetry collector can read what --flow-log writes, see docs/modules/flows.md"
	inMark         = "--mark is a mask of two bits: write --mark=0x1800 instead of --mark=0x1000 and 0x800 here"
)
