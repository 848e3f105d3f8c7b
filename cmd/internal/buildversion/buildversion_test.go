package buildversion

import (
	"regexp"
	"runtime"
	"testing"

	"github.com/prometheus/common/version"
)

func TestText(t *testing.T) {
	built := ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")"
	for _, tc := range []struct{ name, version, commit, date, want string }{
		{"linked", "v1.2.3", "0123abc", "2026-11-21", `agent, version v1\.2\.3 \(commit 0123abc of 2026-11-21` + regexp.QuoteMeta(built)},
		{"not linked", "", "", "", `agent, version [^ ]+ \(commit [^ ]+ of [^ ,]+` + regexp.QuoteMeta(built)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v, r, d := version.Version, version.Revision, version.BuildDate
			t.Cleanup(func() { version.Version, version.Revision, version.BuildDate = v, r, d })
			version.Version, version.Revision, version.BuildDate = tc.version, tc.commit, tc.date
			if got := Text("agent"); !regexp.MustCompile("^" + tc.want + "$").MatchString(got) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
