//go:build ignore

// Command images prints the names of the images that the end-to-end tests of this release ask
// for, like e2e.test --list-images, without building e2e.test.
package main

import (
	"fmt"

	"k8s.io/kubernetes/test/utils/image"
)

func main() {
	for _, config := range image.GetImageConfigs() {
		fmt.Println(config.GetE2EImage())
	}
}
