package main

import (
	"errors"

	"github.com/spf13/cobra"

	"sigs.k8s.io/kube-network-policies/cmd/internal/removedflags"
)

const useDoctor = "kubectl netpol doctor makes real connections"

// removedFlags are the flags of earlier versions: those of assert that made connections, and diff of
// suggest.
var removedFlags = removedflags.Table{
	"probe": useDoctor, "probe-image": useDoctor, "probe-families": useDoctor, "probe-settle": useDoctor,
	"diff": "kubectl netpol suggest --enforce > FILE; kubectl netpol diff -f FILE",
}

// newUnused returns a command of earlier versions, which says what to use.
func newUnused() *cobra.Command {
	return &cobra.Command{
		Use: "unused", Long: "The exit code is 2.", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("unused: the command was removed: kubectl netpol list has a column for what is unused")
		},
	}
}
