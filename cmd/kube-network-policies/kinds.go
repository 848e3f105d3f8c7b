package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// kindFlags are the flags that enable kinds of policy.
type kindFlags map[*compile.Kind]*bool

// addKindFlags adds a flag for each kind that is not always enabled.
func addKindFlags(fs *pflag.FlagSet) kindFlags {
	const help = "enable %s, as soon as its CustomResourceDefinition is installed. When false, these policies have no effect and get no conditions. Agents and status writer need the same value"
	flags := kindFlags{}
	for _, k := range compile.Kinds {
		if k.Flag != "" {
			flags[k] = fs.Bool(k.Flag, false, fmt.Sprintf(help, k.Name+" ("+k.Resource.Version+")"))
		}
	}
	return flags
}

// enabled returns the kinds whose flags are set, in the order of compile.Kinds.
func (f kindFlags) enabled() []*compile.Kind {
	var kinds []*compile.Kind
	for _, k := range compile.Kinds {
		if set := f[k]; set != nil && *set {
			kinds = append(kinds, k)
		}
	}
	return kinds
}
