package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/lint"
)

const (
	onlineShop = "../../examples/online-shop"
	mistakes   = "../../examples/online-shop-mistakes"
)

// The shop's policies have no findings and fulfil its teams' expectations.
func TestTheOnlineShopIsRight(t *testing.T) {
	if code, stdout, stderr := call(t, "", "check -f "+onlineShop); code != 0 || !strings.HasPrefix(stdout, "0 findings in 29 policies") {
		t.Errorf("check: %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr := call(t, "", "assert "+onlineShop+"/expectations.yaml -f "+onlineShop)
	if code != 0 || !strings.HasSuffix(stdout, ": all hold\n") {
		t.Errorf("assert: %d\n%s%s", code, stdout, stderr)
	}
}

// replaces maps a file with a mistake to the shop's file that it replaces.
var replaces = map[string]string{"dns-port.yaml": "platform/dns.yaml"}

// Each file plants one mistake. check finds it and nothing else.
func TestCheckFindsThePlantedMistakeAlone(t *testing.T) {
	files, err := filepath.Glob(mistakes + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range lint.Rules {
		t.Run(r.ID, func(t *testing.T) {
			file := filepath.Join(mistakes, r.ID+".yaml")
			i := slices.Index(files, file)
			if i < 0 {
				t.Fatalf("no file plants this mistake")
			}
			files = slices.Delete(files, i, i+1)
			command := "check -o json -f " + file + shopWithout(t, replaces[r.ID+".yaml"])
			_, stdout, stderr := call(t, "", command)
			var got struct {
				Findings []struct{ Rule, Object, Field string }
			}
			if err := json.Unmarshal([]byte(stdout), &got); err != nil {
				t.Fatalf("%v\n%s%s", err, stdout, stderr)
			}
			if len(got.Findings) == 0 {
				t.Error("the planted mistake is not found")
			}
			for _, f := range got.Findings {
				if f.Rule != r.ID {
					t.Errorf("also found %+v", f)
				}
			}
		})
	}
	if len(files) > 0 {
		t.Errorf("%s plant mistakes of no rule", files)
	}
}

// shopWithout returns the flags that read the shop without one of its files, or all of it
// if file is empty.
func shopWithout(t *testing.T, file string) string {
	t.Helper()
	if file == "" {
		return " -f " + onlineShop
	}
	flags, left := "", false
	shop := os.DirFS(onlineShop)
	err := fs.WalkDir(shop, ".", func(path string, _ fs.DirEntry, err error) error {
		switch {
		case path == file:
			left = true
		case filepath.Base(path) != "kustomization.yaml" && strings.HasSuffix(path, ".yaml"):
			flags += " -f " + filepath.Join(onlineShop, path)
		}
		return err
	})
	if err != nil || !left {
		t.Fatalf("%s is not left out: %v", file, err)
	}
	return flags
}
