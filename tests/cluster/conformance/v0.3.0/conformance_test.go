// Package conformance runs the conformance suite of ClusterNetworkPolicy v1beta1. The folder
// v0.1.7 says why it repeats this file.
package conformance

import (
	"errors"
	"flag"
	"os"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/network-policy-api/apis/v1beta1"
	report "sigs.k8s.io/network-policy-api/conformance/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"
	"sigs.k8s.io/yaml"
)

var (
	silence = flag.Duration("silence", 3*time.Second, "how long a connection may be without an answer until it counts as denied")
	output  = flag.String("report", "", "a file for the report, in the form in which network-policy-api collects them")
	version = flag.String("version", "", "with -report: the version of this project")
	home    = flag.String("home", "", "with -report: the page of the repository")
	proof   = flag.String("proof", "", "with -report: a link to the run that has made it")
)

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
	if err := errors.Join(v1beta1.Install(scheme.Scheme), apiextensionsv1.AddToScheme(scheme.Scheme)); err != nil {
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
	options := suite.Options{
		Client:                     objects,
		ClientSet:                  commands,
		KubeConfig:                 *access,
		CleanupBaseResources:       true,
		EnableAllSupportedFeatures: true,
		TimeoutConfig:              config.TimeoutConfig{RequestTimeout: *silence, GetTimeout: patience, DeleteTimeout: patience},
	}
	if *output != "" {
		testProfile(t, options)
		return
	}
	s := suite.New(options)
	s.Setup(t)
	s.Run(t, tests.ConformanceTests)
}

// testProfile runs the suite and writes the report. The definitions of the cluster must be those
// of the suite's release, and no others of the API.
func testProfile(t *testing.T, options suite.Options) {
	implementation, err := suite.ParseImplementation("independent", "kube-network-policies", *home, *version, *home, *proof)
	if err != nil {
		t.Fatal(err)
	}
	s, err := suite.NewConformanceProfileTestSuite(suite.ConformanceProfileOptions{
		Options: options, Implementation: *implementation, ConformanceProfiles: sets.New(suite.CNPConformanceProfileName),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Setup(t)
	if err := s.Run(t, tests.ConformanceTests); err != nil {
		t.Fatal(err)
	}
	made, err := s.Report()
	if err != nil {
		t.Fatal(err)
	}
	if err := writeReport(*output, made); err != nil {
		t.Fatal(err)
	}
}

func writeReport(file string, made *report.ConformanceReport) error {
	text, err := yaml.Marshal(made)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}
