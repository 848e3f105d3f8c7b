package flows

import (
	"context"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/pkg/agent/module"
)

// Path is the HTTP path of flow records at the probe socket of an agent.
const Path = "flows"

// Module returns the module, whose records are served at Path.
func Module() module.Module {
	var logDenied, log bool
	return module.Module{
		Name: "flow records",
		Flags: func(fs *pflag.FlagSet) {
			fs.BoolVar(&logDenied, "log-denied", false, "log denied packets with their pods and policies, at most ten a second and five of one pod in ten seconds")
			fs.BoolVar(&log, "flow-log", false, "write records of changed flows and denied packets to the standard output every ten seconds, as lines of JSON")
		},
		New: func(core *module.Core) (module.Part, error) {
			cfg := Config{
				Node: core.Node, Learned: core.Learned, Why: core.Explain, Connections: core.Connections, Remembers: core.Decides,
				AuditOnly: core.Audit, State: core.State, Registerer: core.Registry,
			}
			if logDenied {
				cfg.Logger = klog.LoggerWithName(core.Logger, "denials")
			}
			r := New(cfg)
			part := module.Part{Tap: r.Tap, Loops: []func(context.Context) error{r.Run}, Serve: []module.Handler{{To: module.Socket, Pattern: "GET /" + Path, Handler: r}}}
			if log {
				part.Loops = append(part.Loops, func(ctx context.Context) error { return r.Log(ctx, os.Stdout) })
			}
			return part, nil
		},
	}
}
