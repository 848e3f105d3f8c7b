package verdictcache

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

const (
	// minAllowedFor leaves time to count packets before a class expires.
	minAllowedFor = 2 * countBefore
	// maxAllowedFor bounds how long a node without an agent accepts connections.
	maxAllowedFor = time.Hour
)

// Module returns the module, which keeps verdicts in kernel. Its flag sets allowedFor, how long kernel
// remembers allowed classes.
func Module(kernel Kernel, allowedFor *time.Duration) module.Module {
	return module.Module{
		Name: "remembered verdicts",
		Flags: func(fs *pflag.FlagSet) {
			fs.Var((*lifetime)(allowedFor), "remember-verdicts", "`TIME` for which the kernel accepts further connections of an allowed source, destination, protocol and port without asking the agent, 20s-1h, also without an agent. 0 has every connection decided by the agent")
		},
		New: func(core *module.Core) (module.Part, error) {
			if *allowedFor == 0 {
				return module.Part{}, nil
			}
			c := New(Config{
				Kernel: kernel, AllowedFor: *allowedFor, Evaluate: core.EvaluateClass, Flushed: core.Flushed,
				Alone: core.Alone, Count: core.ReportClass, Registerer: core.Registry,
			})
			return module.Part{
				Tap: c.Tap, Withdraw: c.Changed, Loops: []func(context.Context) error{c.Run},
				Single: module.Single{Classes: &module.Classes{Accept: c.Remember, For: *allowedFor, Decides: c.Remembers, Healthy: c.Healthy}},
			}, nil
		},
	}
}

// lifetime is the value of the flag.
type lifetime time.Duration

// Set implements pflag.Value.
func (l *lifetime) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d != 0 && (d < minAllowedFor || d > maxAllowedFor || d%time.Second != 0) {
		return fmt.Errorf("must be 0 or whole seconds in %s-%s", minAllowedFor, maxAllowedFor)
	}
	*l = lifetime(d)
	return nil
}

// String implements pflag.Value.
func (l *lifetime) String() string { return time.Duration(*l).String() }

// Type implements pflag.Value.
func (l *lifetime) Type() string { return "value" }
