package main

import (
	"fmt"
	"regexp"
	"strings"
)

// count is how many of something have ended in which way.
type count struct{ passed, failed, skipped int }

func (c count) total() int { return c.passed + c.failed + c.skipped }

func (c *count) add(result string) {
	switch result {
	case "PASS":
		c.passed++
	case "SKIP":
		c.skipped++
	default:
		c.failed++
	}
}

// of returns, for example, "24 tests (24 passed, 0 failed, 0 skipped)".
func (c count) of(what string) string {
	return fmt.Sprintf("%d %s (%d passed, %d failed, %d skipped)", c.total(), what, c.passed, c.failed, c.skipped)
}

// counts are the results of a run: of the suite's tests and of the subtests that
// they are made of.
type counts struct{ tests, subtests count }

// clean reports whether at least one test ran and all passed.
func (c counts) clean() bool {
	return c.tests.passed > 0 && c.subtests.passed > 0 &&
		c.tests.passed == c.tests.total() && c.subtests.passed == c.subtests.total()
}

// String returns both counts in one line.
func (c counts) String() string { return c.tests.of("tests") + ", " + c.subtests.of("subtests") }

// result is the line of a verbose test binary with the result of a test. Each level
// is indented by four spaces: the first is the test that runs the suite.
var result = regexp.MustCompile(`(?m)^((?:    )+)--- (PASS|FAIL|SKIP): `)

// countResults counts what a verbose test binary has printed.
func countResults(output string) counts {
	var c counts
	for _, found := range result.FindAllStringSubmatch(output, -1) {
		switch strings.Count(found[1], "    ") {
		case 1:
			c.tests.add(found[2])
		case 2:
			c.subtests.add(found[2])
		}
	}
	return c
}
