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

	"sigs.k8s.io/kube-network-policies/pkg/compile"
	"sigs.k8s.io/kube-network-policies/pkg/policy"
	"sigs.k8s.io/kube-network-policies/pkg/policycache"
)

// heapOf returns the heap, after garbage collection, of a process that holds the
// objects of the API server of a kubeconfig and no other part of an agent.
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
	source, err := policycache.Connect(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	taken := make(chan *policy.Snapshot, 1)
	c, err := policycache.New(source, policycache.Config{
		NodeName: ownNode, Features: compile.AllFeatures(), Registerer: prometheus.NewRegistry(),
	}, func(_ context.Context, s *policy.Snapshot, _ time.Time, _ bool) { taken <- s })
	if err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	var s *policy.Snapshot
	select {
	case s = <-taken:
	case <-ctx.Done():
		return ctx.Err()
	}
	runtime.GC()
	runtime.GC() // what has a finalizer is freed by the second
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	fmt.Println(memory.HeapAlloc)
	runtime.KeepAlive(s)
	cancel()
	return <-ended
}
