// Command build makes ready what the tests need, so that the tests themselves do
// not wait for it: a cold build takes longer than a test may.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"sigs.k8s.io/kube-network-policies/tests/integration/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	for _, r := range servers.All {
		folder, err := r.Build(ctx, os.Stderr)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(folder)
	}
}
