// manifests writes the files that are generated from the Helm chart. With -check it says
// which of them are not current, and with -values it prints what the chart renders with
// these values.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"helm.sh/helm/v4/pkg/chart/common"

	"sigs.k8s.io/kube-network-policies/release/chart"
)

func main() {
	check := flag.Bool("check", false, "compare, and write nothing")
	values := flag.String("values", "", "print what the chart renders with the values of `FILE`, and write nothing")
	version := flag.String("kube-version", chart.Version, "with -values, the `VERSION` of Kubernetes")
	repository := flag.String("repository", "..", "the `FOLDER` of the repository")
	flag.Parse()
	err := error(nil)
	if *values != "" {
		err = render(*repository, *values, *version)
	} else {
		err = run(*repository, *check)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func render(repository, file, version string) error {
	c, err := chart.Load(repository)
	if err != nil {
		return err
	}
	values, err := common.ReadValuesFile(file)
	if err != nil {
		return err
	}
	text, err := chart.Documents(c, values, version)
	fmt.Print(text)
	return err
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
