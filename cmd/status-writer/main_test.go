package main

import (
	"testing"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command"
	"sigs.k8s.io/kube-network-policies/cmd/internal/command/commandtest"
)

func TestHelp(t *testing.T) { commandtest.Help(t, &program) }

func TestWrongConfiguration(t *testing.T) { commandtest.WrongConfiguration(t, &program) }

func TestFlagsAreFew(t *testing.T) { commandtest.FlagsAreFew(t, &program, 10) }

func TestRemovedFlagsAreNotThere(t *testing.T) { commandtest.RemovedFlagsAreNotThere(t, &program) }

// The tables of docs/flags.md are what --help lists. Shared flags are in the agent's table.
func TestFlagsPage(t *testing.T) {
	shared, agents := command.NewShared(), pflag.NewFlagSet("", pflag.ContinueOnError)
	shared.AddFlags(agents)
	commandtest.FlagsPage(t, &program, 2, agents)
}
