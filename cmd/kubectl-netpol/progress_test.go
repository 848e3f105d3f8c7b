package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The clock is that of synctest, so the test does not wait.
func TestProgressIsShownForLongWorkOnly(t *testing.T) {
	for work, want := range map[time.Duration]string{
		progressDelay - 1: "",
		progressDelay + 1: "Reading …\r         \r",
	} {
		t.Run(work.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out strings.Builder
				done := showProgress(&out, "Reading")
				time.Sleep(work)
				synctest.Wait()
				done()
				time.Sleep(time.Hour)

				if out.String() != want {
					t.Errorf("got %q, want %q", out.String(), want)
				}
			})
		})
	}
}

// Only terminals get messages about progress.
func TestProgressIsForTerminals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		o := &options{notes: &out}
		done := o.progress("Reading")
		time.Sleep(time.Hour)
		done()
		if out.Len() > 0 {
			t.Errorf("got %q", out.String())
		}
	})
}

func TestHelpHasExitCodes(t *testing.T) {
	for _, cmd := range append(newCommand().Commands(), newCommand()) {
		if !strings.Contains(cmd.Long, "exit code") {
			t.Errorf("the help of %s does not explain its exit codes", cmd.Name())
		}
	}
}

func TestColours(t *testing.T) {
	t.Chdir("testdata")
	for flag, want := range map[string]bool{"": false, " --color auto": false, " --color never": false, " --color always": true} {
		t.Run(flag, func(t *testing.T) {
			_, stdout, _ := call(t, "", "matrix -f shop"+flag)
			if got := strings.Contains(stdout, "\x1b["); got != want {
				t.Errorf("%q: coloured is %v, want %v", flag, got, want)
			}
			if _, plain, _ := call(t, "", "matrix -f shop"); want && len(plain) >= len(stdout) {
				t.Errorf("%q: nothing is coloured", flag)
			}
		})
	}
}
