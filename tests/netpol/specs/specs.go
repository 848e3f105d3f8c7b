// Package specs registers scenarios as Ginkgo specs, for test binaries such as Kubernetes'
// e2e.test. It is a module of its own, so that others need no Ginkgo.
package specs

import (
	"context"
	"fmt"

	"github.com/onsi/ginkgo/v2"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// Describe registers a container with a spec for each scenario, labelled with its statements. Before
// the first spec that runs, it calls newRunner and checks that everything connects; the specs then
// use the same pods, one after the other. The backend is closed after the last one. A scenario
// that the backend does not support is skipped. args are further arguments of the container, such as
// labels.
func Describe(text string, newRunner func(context.Context) (netpol.Runner, error), scenarios []netpol.Scenario, args ...any) bool {
	return ginkgo.Describe(text, append(args, ginkgo.Ordered, ginkgo.ContinueOnFailure, func() {
		var runner netpol.Runner
		var summary netpol.Summary
		ginkgo.BeforeAll(func(ctx ginkgo.SpecContext) {
			var err error
			if runner, err = newRunner(ctx); err != nil {
				ginkgo.Fail(fmt.Sprintf("start the backend: %v", err))
			}
			ginkgo.DeferCleanup(runner.Backend.Close)
			if err := runner.CheckHealth(ctx); err != nil {
				ginkgo.Fail(fmt.Sprintf("no scenario is played: %v", err))
			}
		})
		for _, scenario := range scenarios {
			ginkgo.It(scenario.Name, ginkgo.Label(scenario.Statements...), func(ctx ginkgo.SpecContext) {
				result := runner.Play(ctx, scenario)
				summary.Add(result)
				report(result)
			})
		}
		ginkgo.AfterAll(func() { ginkgo.AddReportEntry("scenarios", summary.String()) })
	})...)
}

// report ends the spec with the result of its scenario.
func report(result netpol.Result) {
	switch {
	case !result.OK():
		ginkgo.Fail(result.Report(netpol.Unicode, false))
	case len(result.Steps) == 0:
		ginkgo.Skip(fmt.Sprintf("not supported by this backend: %v", result.Unsupported))
	case len(result.Unsupported) > 0:
		ginkgo.AddReportEntry("not supported by this backend", fmt.Sprint(result.Unsupported))
	}
}
