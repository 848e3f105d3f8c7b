// Package featuregates is the flag --feature-gates, with the same names for the agent,
// for the status writer, which reports what the agents do not support, and for
// kubectl-netpol, which answers for them.
package featuregates

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

func names() []string {
	var names []string
	for _, g := range compile.Gates {
		names = append(names, g.Name)
	}
	return names
}

// find returns the gate of that name, nil if there is none.
func find(name string) *compile.Gate {
	i := slices.IndexFunc(compile.Gates, func(g *compile.Gate) bool { return g.Name == name })
	if i < 0 {
		return nil
	}
	return compile.Gates[i]
}

// AddFlag adds --feature-gates to fs. Parsing it changes f, whose values are the
// default; a wrong value is an error of fs.Parse. The usage ends with consequence,
// which says what a gate that is off means for the program.
func AddFlag(fs *pflag.FlagSet, f *compile.Features, consequence string) {
	usage := "optional parts of the API to enable or disable, as `NAME=true|false,...` with NAME one of %s. %s"
	fs.Var(value{f}, "feature-gates", fmt.Sprintf(usage, strings.Join(names(), ", "), consequence))
}

// value is a pflag.Value.
type value struct{ features *compile.Features }

func (v value) Type() string { return "gates" }

// String lists all gates.
func (v value) String() string {
	if v.features == nil {
		return ""
	}
	var list []string
	for _, g := range compile.Gates {
		list = append(list, fmt.Sprintf("%s=%v", g.Name, *g.Field(v.features)))
	}
	return strings.Join(list, ",")
}

// Set changes the gates that s names. Others keep their values, so that the flag may
// be repeated.
func (v value) Set(s string) error {
	for pair := range strings.SplitSeq(s, ",") {
		if pair == "" {
			continue
		}
		name, text, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("%q: must be NAME=true or NAME=false", pair)
		}
		name, text = strings.TrimSpace(name), strings.TrimSpace(text)
		gate := find(name)
		if gate == nil {
			return fmt.Errorf("%q: must be one of %s", name, strings.Join(names(), ", "))
		}
		on, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%s=%q: must be true or false", name, text)
		}
		*gate.Field(v.features) = on
	}
	return nil
}
