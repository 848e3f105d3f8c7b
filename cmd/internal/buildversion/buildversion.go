// Package buildversion is what the programs print for --version.
package buildversion

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/prometheus/common/version"
)

const unknown = "unknown"

// Version returns the version that the linker was given, or else that of the module, or
// "unknown".
func Version() string {
	module := ""
	if build, ok := debug.ReadBuildInfo(); ok {
		module = build.Main.Version
	}
	return cmp.Or(version.Version, module, unknown)
}

// Text returns one line with the version, commit, date, Go version and platform of the
// program that runs. The first three are those that the linker was given, see the
// Makefile, or else those that the Go command has recorded, or "unknown".
//
// version.Print would pull in text/template, with which the linker cannot leave out
// unused methods: a program of nearly twice the size.
func Text(program string) string {
	recorded := map[string]string{}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			recorded[s.Key] = s.Value
		}
	}
	return fmt.Sprintf("%s, version %s (commit %s of %s, %s, %s/%s)", program,
		Version(),
		cmp.Or(version.Revision, recorded["vcs.revision"], unknown),
		cmp.Or(version.BuildDate, recorded["vcs.time"], unknown),
		version.GoVersion, version.GoOS, version.GoArch)
}
