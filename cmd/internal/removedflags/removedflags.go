// Package removedflags says what to write instead of flags of earlier versions.
package removedflags

import (
	"errors"
	"fmt"
	"maps"
	"strings"
)

// A Table has what to write instead, by the name of the flag.
type Table map[string]string

// Kinds are the flags of single kinds of administrators' policies, which all programs had.
var Kinds = Table{
	"admin-network-policy":          adminPolicies,
	"baseline-admin-network-policy": adminPolicies,
	"cluster-network-policy":        adminPolicies,
}

const adminPolicies = "write --admin-policies, for all kinds of administrators' policies that the cluster serves"

const inMetricsTLS = "write --metrics-tls=self-signed, or --metrics-tls=FOLDER with the files tls.crt and tls.key"

// Both adds to t the removed flags that both the agent and the status writer had.
func Both(t Table) Table {
	maps.Copy(t, Kinds)
	for _, name := range []string{"metrics-secure", "metrics-tls-cert-file", "metrics-tls-private-key-file"} {
		t[name] = inMetricsTLS
	}
	return t
}

// Check returns an error for each argument that is a flag of t.
func (t Table) Check(args []string) error {
	var errs []error
	for _, arg := range args {
		if arg == "--" {
			break
		}
		name, isFlag := strings.CutPrefix(arg, "--")
		name, _, _ = strings.Cut(name, "=")
		if instead, ok := t[name]; ok && isFlag {
			errs = append(errs, fmt.Errorf("%s: the flag was removed: %s", arg, instead))
		}
	}
	return errors.Join(errs...)
}
