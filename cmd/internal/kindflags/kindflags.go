// Package kindflags is the flags that enable kinds of policy, one for each kind that
// is not always enabled, with the same names in all programs.
package kindflags

import (
	"fmt"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/compile"
)

// Flags are the flags of the kinds that have one.
type Flags map[*compile.Kind]*bool

// Add adds the flags to fs. Each has the same default, and a usage of usage with the
// name and version of the kind in the place of its %s.
func Add(fs *pflag.FlagSet, usage string, enabled bool) Flags {
	flags := Flags{}
	for _, k := range compile.Kinds {
		if k.Flag != "" {
			flags[k] = fs.Bool(k.Flag, enabled, fmt.Sprintf(usage, k.Name+" ("+k.Resource.Version+")"))
		}
	}
	return flags
}

// Enabled returns the kinds whose flags are set, in the order of compile.Kinds.
func (f Flags) Enabled() []*compile.Kind {
	var kinds []*compile.Kind
	for _, k := range compile.Kinds {
		if set := f[k]; set != nil && *set {
			kinds = append(kinds, k)
		}
	}
	return kinds
}
