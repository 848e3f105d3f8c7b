// The table prints what this project promises about its speed and size and which of it the
// given results reach, and a second table that compares ways to decide. It reads results
// (package results) from any number of files, or from its standard input. What they do not
// contain is shown as not measured.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/kube-network-policies/tests/speed/bench/results"
)

func main() {
	flag.Parse()
	r, err := read(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
	write(os.Stdout, r)
}

// read reads all files as if they were one.
func read(paths []string) (*results.Results, error) {
	if len(paths) == 0 {
		return results.Read(os.Stdin)
	}
	var all []io.Reader
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		all = append(all, file)
	}
	return results.Read(io.MultiReader(all...))
}

// write writes the machine's facts and the tables as Markdown.
func write(out io.Writer, r *results.Results) {
	for _, fact := range r.Facts {
		fmt.Fprintf(out, "%s  \n", fact)
	}
	fmt.Fprint(out, "\n| what | to reach | measured: median (lowest to highest) | reached |\n| --- | --- | --- | --- |\n")
	for _, g := range goals {
		measured, reached := g.evaluate(r)
		fmt.Fprintf(out, "| %s | %s | %s | %s |\n", g.what, g.reach, measured, reached)
	}
	compare(out, r)
}
