package main

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// manifests is the folder of this name: the cluster, and the policies that the
// steps apply.
//
//go:embed manifests
var manifests embed.FS

// policyFile returns the path of a policy's manifest, as the reader finds it.
func policyFile(name string) string { return "manifests/policies/" + name + ".yaml" }

// readPods returns the pods of the cluster.
func readPods() ([]*corev1.Pod, error) {
	content, err := manifests.ReadFile("manifests/cluster/pods.yaml")
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return pods, nil
		}
		if err != nil {
			return nil, fmt.Errorf("pods.yaml: %w", err)
		}
		pod := &corev1.Pod{}
		if err := yaml.UnmarshalStrict(document, pod); err != nil {
			return nil, fmt.Errorf("pods.yaml: %w", err)
		}
		if pod.Name != "" { // else a document of comments
			pods = append(pods, pod)
		}
	}
}

// copyCluster writes the manifests of the cluster into the watched folder.
func copyCluster(to lab.Manifests) error {
	files, err := fs.ReadDir(manifests, "manifests/cluster")
	if err != nil {
		return err
	}
	for _, file := range files {
		content, err := manifests.ReadFile("manifests/cluster/" + file.Name())
		if err != nil {
			return err
		}
		if err := to.Write(strings.TrimSuffix(file.Name(), ".yaml"), string(content)); err != nil {
			return err
		}
	}
	return nil
}
