// The plots draw results (package results) over the number of policies: agents as lines,
// what they are compared with as levels. A module of its own,
// because of what it draws with.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kube-network-policies/tests/bench/results"
)

func main() {
	into := flag.String("into", ".", "folder to write PNG files into")
	flag.Parse()
	if err := run(flag.Args(), *into); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

func run(paths []string, into string) error {
	if len(paths) != 1 {
		return fmt.Errorf("%d files of results given, want 1", len(paths))
	}
	file, err := os.Open(paths[0])
	if err != nil {
		return err
	}
	defer file.Close()
	r, err := results.Read(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", paths[0], err)
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	for _, c := range charts {
		if err := c.draw(r, filepath.Join(into, c.file)); err != nil {
			return fmt.Errorf("draw %s: %w", c.file, err)
		}
	}
	return nil
}
