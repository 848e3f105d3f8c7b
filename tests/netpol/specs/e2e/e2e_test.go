// Package e2e is a test binary with the scenarios as Ginkgo specs, whose names and labels are like
// those of Kubernetes' e2e.test.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
	"sigs.k8s.io/kube-network-policies/tests/netpol/specs"
	"sigs.k8s.io/kube-network-policies/tests/netpol/suite"
)

func TestMain(m *testing.M) {
	newBackend := suite.ClusterFlags(flag.CommandLine)
	profile := flag.String("profile", "kubernetes", fmt.Sprintf("scenarios to play, one of %q", scenarios.Profiles))
	settle := flag.Duration("settle", 10*time.Second, "how long a change may take to become effective")
	flag.Parse()
	played, err := scenarios.Profile(*profile)
	if err != nil {
		fmt.Fprintln(os.Stderr, "-profile:", err)
		os.Exit(2)
	}
	specs.Describe("[sig-network] Netpol [Feature:NetworkPolicy]", func(ctx context.Context) (netpol.Runner, error) {
		backend, err := newBackend(ctx)
		return netpol.Runner{Backend: backend, Settle: *settle}, err
	}, played, ginkgo.Label("sig-network", "Feature:NetworkPolicy"))
	os.Exit(m.Run())
}

func TestE2E(t *testing.T) {
	config, _ := ginkgo.GinkgoConfiguration()
	inPod := os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	if flag.Lookup("kubeconfig").Value.String() == "" && !inPod && !config.DryRun {
		t.Skip("needs -kubeconfig")
	}
	ginkgo.RunSpecs(t, "Network policies")
}
