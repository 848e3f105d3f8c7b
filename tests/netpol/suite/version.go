package suite

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version describes the running program by its build information.
func version(name string) string {
	build, _ := debug.ReadBuildInfo()
	if build == nil {
		build = &debug.BuildInfo{}
	}
	recorded := map[string]string{}
	for _, s := range build.Settings {
		recorded[s.Key] = s.Value
	}
	return fmt.Sprintf("%s, version %s (commit %s of %s, %s, %s/%s)", name, cmp.Or(build.Main.Version, "unknown"),
		cmp.Or(recorded["vcs.revision"], "unknown"), cmp.Or(recorded["vcs.time"], "unknown"),
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
