package backend

import (
	"context"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Environment returns the versions of this machine's kernel and system.
func (b *Backend) Environment(context.Context) (netpol.Environment, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return netpol.Environment{}, os.NewSyscallError("uname", err)
	}
	environment := netpol.Environment{Kernels: []string{unix.ByteSliceToString(name.Release[:])}}
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return netpol.Environment{}, err
	}
	for line := range strings.Lines(string(release)) {
		if system, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			environment.Systems = []string{strings.Trim(system, `"`)}
		}
	}
	return environment, nil
}
