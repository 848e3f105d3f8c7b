package cluster_test

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/cluster"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
)

// All scenarios on the cluster of a kubeconfig. The example is compiled but not run,
// because it needs a cluster.
func ExampleNew() {
	ctx := context.Background()
	access, err := clientcmd.BuildConfigFromFlags("", "kubeconfig")
	if err != nil {
		fmt.Println(err)
		return
	}
	backend, err := cluster.New(ctx, access, cluster.Config{
		Image:    "registry.k8s.io/e2e-test-images/agnhost:2.66.1",
		Families: []corev1.IPFamily{corev1.IPv4Protocol},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer backend.Close()
	runner := netpol.Runner{Backend: backend, Settle: 10 * time.Second}
	summary := runner.PlayAll(ctx, scenarios.All(), func(r netpol.Result) {
		fmt.Print(r.Report(netpol.Unicode, false))
	})
	fmt.Println(&summary)
}
