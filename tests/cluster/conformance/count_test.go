package main

import "testing"

func TestCountResults(t *testing.T) {
	for _, c := range []struct {
		name, output, want string
		clean              bool
	}{
		{name: "nothing ran", output: "PASS\n", want: "0 tests (0 passed, 0 failed, 0 skipped), 0 subtests (0 passed, 0 failed, 0 skipped)"},
		{name: "all passed", output: `=== RUN   TestConformance/Gress/allows
--- PASS: TestConformance (1.00s)
    --- PASS: TestConformance/Gress (1.00s)
        --- PASS: TestConformance/Gress/allows (0.50s)
        --- PASS: TestConformance/Gress/denies (0.50s)
PASS
`, want: "1 tests (1 passed, 0 failed, 0 skipped), 2 subtests (2 passed, 0 failed, 0 skipped)", clean: true},
		{name: "one failed", output: `--- FAIL: TestConformance (1.00s)
    --- FAIL: TestConformance/Gress (1.00s)
        --- PASS: TestConformance/Gress/allows (0.50s)
        --- FAIL: TestConformance/Gress/denies (0.50s)
`, want: "1 tests (0 passed, 1 failed, 0 skipped), 2 subtests (1 passed, 1 failed, 0 skipped)"},
		{name: "one was skipped", output: `--- PASS: TestConformance (1.00s)
    --- SKIP: TestConformance/Nodes (0.00s)
    --- PASS: TestConformance/Gress (1.00s)
        --- PASS: TestConformance/Gress/allows (0.50s)
`, want: "2 tests (1 passed, 0 failed, 1 skipped), 1 subtests (1 passed, 0 failed, 0 skipped)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := countResults(c.output)
			if got.String() != c.want || got.clean() != c.clean {
				t.Errorf("got %v, clean %v; want %s, clean %v", got, got.clean(), c.want, c.clean)
			}
		})
	}
}
