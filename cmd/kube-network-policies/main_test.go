package main

import (
	"testing"

	"sigs.k8s.io/kube-network-policies/cmd/internal/command/commandtest"
)

func TestHelp(t *testing.T) { commandtest.Help(t, &program) }

func TestWrongConfiguration(t *testing.T) { commandtest.WrongConfiguration(t, &program) }

func TestFlagsAreFew(t *testing.T) { commandtest.FlagsAreFew(t, &program, 24) }

func TestRemovedFlagsAreNotThere(t *testing.T) { commandtest.RemovedFlagsAreNotThere(t, &program) }
