package main

import (
	"maps"

	"sigs.k8s.io/kube-network-policies/cmd/internal/removedflags"
)

// removedFlags are flags of earlier versions by the command that had them.
var removedFlags = map[string]removedflags.Table{
	"": both(removedflags.Table{
		"block-established":        "established connections that policies no longer allow are always blocked: remove it",
		"block-mark":               inMark,
		"cleanup":                  "write the command kube-network-policies cleanup, with --mark and --snapshot-cache as the agent has them",
		"cleanup-wait":             "write the command kube-network-policies cleanup --wait",
		"cni-cache-dir":            "write the folder as --pod-address-source=FOLDER; the agent is then not ready while it cannot be read",
		"divert":                   byKernel,
		"early-udp":                byKernel,
		"evaluation-memory":        "it is always 64 MiB: remove it",
		"fail-open-internal-error": "write --fail-open=internal-error",
		"fail-open-queue-full":     "write --fail-open=queue-full",
		"fail-open-unknown-packet": "write --fail-open=unknown-packet",
		"max-crashes":              "the agent is always started again, until its fifth crash within a minute: remove it",
		"max-pod-watches":          "it is always 56: remove it",
		"nfqueue-count":            "it is always the number of CPUs, at most 4: remove it",
		"otlp-ca-file":             collectorsRead,
		"otlp-endpoint":            collectorsRead,
		"otlp-interval":            collectorsRead,
		"pod-share":                "it is always 1000 packets a second: remove it",
		"remember-mark":            inMark,
		"snapshot-cache-max-age":   "it is always 24h: remove it",
	}),
	writerName: both(removedflags.Table{
		"cleanup":                "write the command kube-network-policies status-writer cleanup",
		"denials-ca-file":        agentsProve,
		"denials-dir":            agentsProve,
		"denials-port":           agentsProve,
		"denials-token-file":     agentsProve,
		"events":                 "Events are always created: remove it, and the right to create Events if you want none",
		"leader-elect-namespace": "it is always the namespace of the writer's pod: remove it",
		"status-burst":           "it is always 20 writes: remove it",
		"status-qps":             "it is always 5 writes a second: remove it",
	}),
}

const (
	agentsProve    = "agents prove themselves by their keys: remove it"
	byKernel       = "it always depends on the kernel: remove it"
	collectorsRead = "an OpenTelemetry collector can read what --flow-log writes, see docs/flows.md"
	inMark         = "--mark is a mask of two bits: write --mark=0x1800 instead of --mark=0x1000 and 0x800 here"
	inMetricsTLS   = "write --metrics-tls=self-signed, or --metrics-tls=FOLDER with the files tls.crt and tls.key"
)

// both adds removed flags of both the agent and the status writer.
func both(t removedflags.Table) removedflags.Table {
	maps.Copy(t, removedflags.Kinds)
	for _, name := range []string{"metrics-secure", "metrics-tls-cert-file", "metrics-tls-private-key-file"} {
		t[name] = inMetricsTLS
	}
	return t
}
