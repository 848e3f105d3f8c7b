// Package conformance runs the conformance suite of AdminNetworkPolicy and
// BaselineAdminNetworkPolicy. The folders of later releases repeat this file,
// because each release of the suite is a version of one module, and a build has one version of it.
package conformance

import (
	"flag"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
)

var silence = flag.Duration("silence", 3*time.Second, "how long a connection may be without an answer until it counts as denied")

// patience is what a slow machine needs: the suite takes some of these times for a
// whole test with all its connections.
const patience = 10 * time.Minute

// TestConformance runs the whole suite, as it is, on the cluster of KUBECONFIG.
func TestConformance(t *testing.T) {
	access, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	access.QPS = -1 // one command for each connection
	access.ContentType = "application/json"
	if err := v1alpha1.Install(scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	objects, err := client.New(access, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	commands, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	s := suite.New(suite.Options{
		Client:                     objects,
		ClientSet:                  commands,
		KubeConfig:                 *access,
		CleanupBaseResources:       true,
		EnableAllSupportedFeatures: true,
		TimeoutConfig:              config.TimeoutConfig{RequestTimeout: *silence, GetTimeout: patience, DeleteTimeout: patience},
	})
	s.Setup(t)
	s.Run(t, tests.ConformanceTests)
}
