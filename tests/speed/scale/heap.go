package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/clusterwatch"
	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
	"sigs.k8s.io/kube-network-policies/pkg/engine/policy"
)

// heapOf returns the heap, after garbage collection, of a process that holds the objects of
// a kubeconfig's API server and no other part of an agent.
func (e *environment) heapOf(ctx context.Context, kubeconfig string) (bytes int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+e.node.NetNS(), self, "-heap-of="+kubeconfig)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(output, &bytes)
	}
	if err != nil {
		return 0, fmt.Errorf("measure the heap: %w", err)
	}
	return bytes, nil
}

// printHeap is the main function of that process.
func printHeap(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	source, err := clusterwatch.Connect(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	snapshots := make(chan *policy.Snapshot, 1)
	c, err := clusterwatch.New(source, clusterwatch.Config{
		NodeName: ownNode, Features: compile.AllFeatures(), Registerer: prometheus.NewRegistry(),
	}, func(_ context.Context, s *policy.Snapshot, _ time.Time, _ bool) { snapshots <- s })
	if err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	var s *policy.Snapshot
	select {
	case s = <-snapshots:
	case <-ctx.Done():
		return ctx.Err()
	}
	runtime.GC()
	runtime.GC() // the second run frees objects with finalizers
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	fmt.Println(memory.HeapAlloc)
	runtime.KeepAlive(s)
	cancel()
	return <-ended
}
