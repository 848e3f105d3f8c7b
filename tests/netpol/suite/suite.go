// Package suite is a command line that plays scenarios on a backend, prints the tables that
// differ from what is expected, and counts. A Command supports live clusters; programs can
// add their own backends.
package suite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
	"sigs.k8s.io/kube-network-policies/tests/netpol/scenarios"
)

// Command is the command line. The zero Command plays scenarios on a cluster.
type Command struct {
	// Backends are those that -backend accepts in addition to "cluster".
	Backends map[string]NewBackend
	// Default is the default of -backend. If it is empty, the default is "cluster".
	Default string
	// Reference computes the tables that -dir expects, see netpol.FolderScenario. Without it
	// there is no -dir.
	Reference netpol.Backend
}

// NewBackend returns a new backend. The command closes it.
type NewBackend func(context.Context) (netpol.Backend, error)

// ErrFailed is returned if a scenario failed, which has already been reported.
var ErrFailed = errors.New("not as expected")

// Main runs the command with the arguments of the process and exits with status 1 if it
// fails.
func (c Command) Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	said := make(chan struct{})
	finished := context.AfterFunc(ctx, func() {
		defer close(said)
		stop() // the next signal ends the process
		fmt.Fprintln(os.Stderr, "interrupted: deleting what this run has created; interrupt again to leave it")
	})
	err := c.Run(ctx, os.Stdout, os.Args[1:])
	if !finished() {
		<-said // before the process ends
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

// Run plays what args select and reports on out.
func (c Command) Run(ctx context.Context, out io.Writer, args []string) error {
	var o options
	flags := flag.NewFlagSet("netpol", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller reports the error
	backends := map[string]NewBackend{"cluster": ClusterFlags(flags)}
	maps.Copy(backends, c.Backends)
	c.register(flags, &o, slices.Sorted(maps.Keys(backends)))
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.PrintDefaults()
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.version:
		_, err := fmt.Fprintln(out, version(filepath.Base(os.Args[0])))
		return err
	}
	newBackend, ok := backends[o.backend]
	if !ok {
		return fmt.Errorf("-backend %q: want one of %s", o.backend, strings.Join(slices.Sorted(maps.Keys(backends)), ", "))
	}
	chosen, err := c.choose(ctx, o)
	if err != nil {
		return err
	}
	return play(ctx, out, o, args, newBackend, chosen)
}

// options are the flags of every backend.
type options struct {
	backend string
	dir     string
	profile string
	run     string
	settle  time.Duration
	all     bool
	version bool
	// provider is what enforces the policies, for results.
	provider string
	// junit, report and results are files to write.
	junit, report, results string
}

func (c Command) register(flags *flag.FlagSet, o *options, backends []string) {
	backend := c.Default
	if backend == "" {
		backend = "cluster"
	}
	flags.StringVar(&o.backend, "backend", backend, "what to play on: "+strings.Join(backends, ", "))
	flags.StringVar(&o.profile, "profile", "all", "scenarios to play: "+strings.Join(scenarios.Profiles, ", "))
	flags.StringVar(&o.run, "run", "", "play only the scenarios whose name matches this regular expression")
	flags.DurationVar(&o.settle, "settle", 10*time.Second, "how long a change may take to become effective; what differs after that fails")
	flags.BoolVar(&o.all, "v", false, "print all tables, not only those that differ")
	flags.StringVar(&o.junit, "junit", "", "write the results into this file, as JUnit's XML")
	flags.StringVar(&o.report, "report", "", "write a report into this file, as markdown: every scenario, the tables that differ, and what could not be observed")
	flags.StringVar(&o.results, "results", "", "write counts and times into this file, as JSON")
	flags.StringVar(&o.provider, "provider", "", "name and version of what enforces the policies, for -results")
	flags.BoolVar(&o.version, "version", false, "print version, commit, commit date, Go version and platform, and exit")
	if c.Reference != nil {
		flags.StringVar(&o.dir, "dir", "", "play the pods, namespaces and policies of this folder in place of the scenarios; the evaluator of this program computes what is expected")
	}
}

// choose returns the scenarios to play.
func (c Command) choose(ctx context.Context, o options) ([]netpol.Scenario, error) {
	if o.dir != "" {
		state, err := netpol.Load(os.DirFS(o.dir))
		if err != nil {
			return nil, fmt.Errorf("load %s: %w", o.dir, err)
		}
		scenario, err := netpol.FolderScenario(ctx, o.dir, state, c.Reference)
		return []netpol.Scenario{scenario}, err
	}
	name, err := regexp.Compile(o.run)
	if err != nil {
		return nil, fmt.Errorf("-run: %w", err)
	}
	profile, err := scenarios.Profile(o.profile)
	if err != nil {
		return nil, fmt.Errorf("-profile: %w", err)
	}
	chosen := slices.DeleteFunc(profile, func(s netpol.Scenario) bool { return !name.MatchString(s.Name) })
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-run %q matches no scenario of the profile %s", o.run, o.profile)
	}
	return chosen, nil
}

// play plays the chosen scenarios on a new backend.
func play(ctx context.Context, out io.Writer, o options, args []string, newBackend NewBackend, chosen []netpol.Scenario) (err error) {
	backend, err := newBackend(ctx)
	if err != nil {
		return fmt.Errorf("start %s: %w", o.backend, err)
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	runner := netpol.Runner{Backend: backend, Settle: o.settle}
	if err := runner.CheckHealth(ctx); err != nil {
		return fmt.Errorf("no scenario is played: %w", err)
	}
	report := report{backend: o.backend, provider: o.provider, support: backend.Supports(), scenarios: chosen}
	report.summary = runner.PlayAll(ctx, chosen, func(r netpol.Result) {
		report.results = append(report.results, r)
		fmt.Fprint(out, r.Report(netpol.Unicode, o.all))
		if !r.OK() {
			fmt.Fprintf(out, "Alone: %s\n%s", alone(os.Args[0], args, r.Scenario), explain(ctx, r))
		}
		if len(r.Unsupported) > 0 {
			fmt.Fprintf(out, "%s: not supported by this backend: %s\n", r.Scenario, strings.Join(r.Unsupported, ", "))
		}
	})
	report.ended = time.Now()
	if described, ok := backend.(netpol.Described); ok {
		if report.environment, err = described.Environment(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	if o.results != "" && ctx.Err() == nil {
		if report.latency, err = runner.MeasureLatency(ctx); err != nil {
			fmt.Fprintln(out, err) // the scenarios show what is wrong
		}
	}
	fmt.Fprintf(out, "%s: %s\n", o.backend, &report.summary)
	if scale := report.environment.Scale; scale != nil {
		fmt.Fprintf(out, "beside the scenarios: %s\n", scale)
	}
	if retries := report.environment.Retries; retries > 0 {
		fmt.Fprintf(out, "changes of the cluster and commands that failed and were repeated: %d\n", retries)
	}
	if control := report.control(); control != "" {
		fmt.Fprintln(out, control)
	}
	for _, c := range report.summary.Convergence() {
		fmt.Fprintln(out, c)
	}
	for _, r := range report.summary.Revocation() {
		fmt.Fprintln(out, r)
	}
	if report.latency != nil {
		fmt.Fprintln(out, report.latency)
	}
	if err := report.write(o); err != nil {
		return err
	}
	if report.summary.Failed > 0 || ctx.Err() != nil {
		return ErrFailed
	}
	return nil
}
