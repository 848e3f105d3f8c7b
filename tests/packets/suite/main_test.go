package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab/labtest"
)

// shop is a typical folder of manifests.
const shop = `
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: web, labels: {app: web}}
spec: {containers: [{name: web, ports: [{name: http, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: shop, name: db, labels: {app: db}}
spec: {containers: [{name: db, ports: [{name: sql, containerPort: 5432}]}]}
---
apiVersion: v1
kind: Pod
metadata: {namespace: guests, name: anyone}
spec: {containers: [{name: anyone}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: shop, name: db-from-web}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: sql}]}]
`

func shopFolder(t *testing.T) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shop.yaml"), []byte(shop), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestFolderPrintsTables(t *testing.T) {
	var out strings.Builder
	if err := command().Run(t.Context(), &out, []string{"-dir", shopFolder(t), "-v"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"TCP 5432 IPv4, TCP 5432 IPv6", "simulated: 1 scenarios, 1 steps, 36 cells"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q:\n%s", want, &out)
		}
	}
}

func TestFolderWithRealPackets(t *testing.T) {
	labtest.Need(t)
	var out strings.Builder
	if err := command().Run(t.Context(), &out, []string{"-backend", "netns", "-dir", shopFolder(t)}); err != nil {
		t.Errorf("%v\n%s", err, &out)
	}
}
