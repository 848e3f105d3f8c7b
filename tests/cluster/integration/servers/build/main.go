// Command build builds the programs that the tests need, because a cold build takes longer
// than a test's timeout. With arguments it builds these releases, named by FOLDER or
// FOLDER/PART, and prints their folders. With -missing it builds nothing and prints which of
// their programs it would build.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"sigs.k8s.io/kube-network-policies/tests/cluster/integration/servers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	onlyMissing := flag.Bool("missing", false, "build nothing, print the programs that would be built")
	flag.Parse()
	if err := build(ctx, flag.Args(), *onlyMissing); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func build(ctx context.Context, names []string, onlyMissing bool) error {
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
		if onlyMissing {
			missing, err := r.Missing(ctx)
			if err != nil {
				return err
			}
			for _, name := range missing {
				fmt.Println(name)
			}
			continue
		}
		folder, err := r.Build(ctx, os.Stderr)
		if err != nil {
			return err
		}
		fmt.Println(folder)
	}
	return nil
}
