// manifests writes the files that are generated from the Helm chart, or with -check
// says which of them are not current.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/kube-network-policies/release/chart"
)

func main() {
	check := flag.Bool("check", false, "compare, and write nothing")
	repository := flag.String("repository", "..", "the `FOLDER` of the repository")
	flag.Parse()
	if err := run(*repository, *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(repository string, check bool) error {
	c, err := chart.Load(repository)
	if err != nil {
		return err
	}
	files, err := chart.Files(c)
	if err != nil {
		return err
	}
	var errs []error
	for name, text := range files {
		name = filepath.Join(repository, name)
		if !check {
			errs = append(errs, os.WriteFile(name, []byte(text), 0o644))
			continue
		}
		if found, err := os.ReadFile(name); err != nil || string(found) != text {
			errs = append(errs, fmt.Errorf("%s is not what the chart renders: run make manifests", name))
		}
	}
	return errors.Join(errs...)
}
