// Command build makes ready what the tests need, so that the tests themselves do
// not wait for it: a cold build takes longer than a test may. With arguments it
// builds these releases, each named by its folder, and prints where they are.
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
	if err := build(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func build(ctx context.Context, names []string) error {
	releases := servers.All
	if len(names) > 0 {
		releases = nil
	}
	for _, name := range names {
		r, err := servers.Named(name)
		if err != nil {
			return err
		}
		releases = append(releases, r)
	}
	for _, r := range releases {
		folder, err := r.Build(ctx, os.Stderr)
		if err != nil {
			return err
		}
		fmt.Println(folder)
	}
	return nil
}
