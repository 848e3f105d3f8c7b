// The plots draw results (package results) over the number of policies: agents as lines,
// what they are compared with as levels. It is a separate module because of its plotting
// libraries.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

func main() {
	folder := flag.String("into", ".", "folder to write PNG files into")
	flag.Parse()
	if err := run(flag.Args(), *folder); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

func run(paths []string, folder string) error {
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
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, c := range charts {
		if err := c.draw(r, filepath.Join(folder, c.file)); err != nil {
			return fmt.Errorf("draw %s: %w", c.file, err)
		}
	}
	return nil
}
