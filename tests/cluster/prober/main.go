// Command prober opens new connections all the time and reports, as JSON, how long
// there was no success (gaps) and what was denied but got through (leaks). It is for
// clusters that change meanwhile: an agent that restarts, a node that is drained, an
// API server that is away. It also makes single attempts for other programs.
// docs/testing/prober.md describes it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

const usage = `Usage:
  prober serve [flags]   answers TCP connections, UDP datagrams and INITs of SCTP
  prober probe [flags]   opens connections and prints a report
  prober try [flags]     makes the attempts that it reads, lines of JSON, and answers each
  prober hold            keeps the connections open that it reads, and says how long each is silent
  prober stop            ends the prober that is process 1 of this container
  prober version         prints version, commit, date, Go version and platform

"prober probe -h" lists the flags.
`

// What the linker is given, see the Makefile.
var version, commit, date = "unknown", "unknown", "unknown"

// errNotAsExpected is returned after a report that has a leak, or a gap that is too
// long.
var errNotAsExpected = errors.New("the result is not as expected, see the report")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdin, os.Stdout, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prober:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, in io.ReadCloser, out io.Writer, args []string) error {
	if len(args) == 0 {
		return errors.New("no command\n" + usage)
	}
	switch args[0] {
	case "-h", "-help", "--help":
		_, err := io.WriteString(out, usage)
		return err
	case "-version", "--version":
		args = []string{"version"}
	}
	flags := flag.NewFlagSet("prober "+args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller reports the error
	command := commands[args[0]]
	if command == nil {
		return fmt.Errorf("unknown command %q\n%s", args[0], usage)
	}
	do := command(flags)
	switch err := flags.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.PrintDefaults()
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return do(ctx, in, out)
}

// commands register their flags and return what runs once these are parsed.
var commands = map[string]func(*flag.FlagSet) func(context.Context, io.ReadCloser, io.Writer) error{
	"serve": func(flags *flag.FlagSet) func(context.Context, io.ReadCloser, io.Writer) error {
		var addresses texts
		flags.Var(&addresses, "listen", "address and port to answer on, TCP and UDP; repeatable (default :8080)")
		withSCTP := flags.Bool("sctp", false, "answer there the INITs of SCTP, too; without CAP_NET_RAW it ends with an error")
		return func(ctx context.Context, _ io.ReadCloser, _ io.Writer) error {
			if len(addresses) == 0 {
				addresses = texts{":8080"}
			}
			return serve(ctx, addresses, *withSCTP)
		}
	},
	"probe": func(flags *flag.FlagSet) func(context.Context, io.ReadCloser, io.Writer) error {
		o := probeFlags(flags)
		return func(ctx context.Context, _ io.ReadCloser, out io.Writer) error { return probeAndReport(ctx, out, o) }
	},
	"try": tryFlags,
	"hold": func(*flag.FlagSet) func(context.Context, io.ReadCloser, io.Writer) error {
		return func(ctx context.Context, in io.ReadCloser, out io.Writer) error {
			defer context.AfterFunc(ctx, func() { in.Close() })()
			err := hold(in, out)
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	},
	"stop": func(*flag.FlagSet) func(context.Context, io.ReadCloser, io.Writer) error {
		return func(context.Context, io.ReadCloser, io.Writer) error { return syscall.Kill(1, syscall.SIGTERM) }
	},
	"version": func(*flag.FlagSet) func(context.Context, io.ReadCloser, io.Writer) error {
		return func(_ context.Context, _ io.ReadCloser, out io.Writer) error {
			_, err := fmt.Fprintf(out, "prober, version %s (commit %s of %s, %s, %s/%s)\n", version, commit, date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		}
	},
}
