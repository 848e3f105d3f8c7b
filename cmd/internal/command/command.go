// Package command is what the agent and the status writer share as programs: commands, flags and
// how they are parsed. It decides nothing that they do.
package command

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-network-policies/cmd/internal/buildversion"
	"sigs.k8s.io/kube-network-policies/cmd/internal/removedflags"
	"sigs.k8s.io/kube-network-policies/pkg/base/spelling"
)

// A Command is what a program does: without a first argument that names another one, or with it.
type Command interface {
	AddFlags(*pflag.FlagSet)
	// Validate checks flags that depend on other flags or on files, and args, the arguments
	// that are not flags.
	Validate(args []string) error
	Run(context.Context) error
}

// A Program is a set of commands.
type Program struct {
	Name string
	// Usage is the help, with %s for the name of the command and for its flags.
	Usage string
	// Commands are by their names. "" is what the program does without one.
	Commands map[string]func() Command
	// Removed are flags of earlier versions, by the command that had them.
	Removed map[string]removedflags.Table
	// RemovedCommands are commands of earlier versions, with what to write instead.
	RemovedCommands map[string]string
}

// Choose returns the command that the first of args names, its name, and the remaining args.
func (p *Program) Choose(args []string) (Command, string, []string) {
	if len(args) > 0 && p.Commands[args[0]] != nil {
		return p.Commands[args[0]](), args[0], args[1:]
	}
	return p.Commands[""](), "", args
}

// Run runs the command that args choose and returns the exit status: 2 for wrong arguments and files that they
// name, 1 for other errors.
func (p *Program) Run(args []string) int {
	if err := p.CheckCommand(args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c, name, args := p.Choose(args)
	fs := p.Flags(c, name)
	showVersion := fs.Bool("version", len(args) == 1 && args[0] == "version", "print version, commit, build date, Go version and platform, and exit")
	err := p.parse(fs, name, args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err == nil && *showVersion:
		fmt.Println(buildversion.Text(fs.Name()))
		return 0
	case err == nil:
		err = c.Validate(fs.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return run(c, fs.Name())
}

// CheckCommand returns an error if the first of args names a command that does not exist.
func (p *Program) CheckCommand(args []string) error {
	if len(args) == 0 || args[0] == "version" || strings.HasPrefix(args[0], "-") || p.Commands[args[0]] != nil {
		return nil
	}
	if instead, removed := p.RemovedCommands[args[0]]; removed {
		return fmt.Errorf("%s %s: the command was removed: %s", p.Name, args[0], instead)
	}
	commands := slices.DeleteFunc(slices.Sorted(maps.Keys(p.Commands)), func(name string) bool { return name == "" })
	return fmt.Errorf("%s %s: there is no such command; the commands are %s, version, and none to run it", p.Name, args[0], strings.Join(commands, ", "))
}

// Parse parses and validates the arguments of the command with this name.
func (p *Program) Parse(c Command, name string, args []string) error {
	fs := p.Flags(c, name)
	if err := p.parse(fs, name, args); err != nil {
		return err
	}
	return c.Validate(fs.Args())
}

// Flags returns the flags of a command.
func (p *Program) Flags(c Command, name string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(strings.TrimSpace(p.Name+" "+name), pflag.ContinueOnError)
	fs.Usage = func() { fmt.Fprintf(os.Stderr, p.Usage, fs.Name(), fs.FlagUsages()) }
	c.AddFlags(fs)
	return fs
}

// parse parses the arguments of a command. Its errors name the flag and its value.
func (p *Program) parse(fs *pflag.FlagSet, name string, args []string) error {
	if err := p.Removed[name].Check(args); err != nil {
		return err
	}
	err := fs.Parse(args)
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return FlagError(invalid.GetFlag().Name, invalid.GetValue(), "%v", invalid.Unwrap())
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		return fmt.Errorf("%w: the most similar one is --%s", err, mostSimilar(fs, unknown.GetSpecifiedName()))
	}
	return err
}

// mostSimilar returns the name of the flag that is spelt most like name.
func mostSimilar(fs *pflag.FlagSet, name string) (similar string) {
	least := math.MaxInt
	fs.VisitAll(func(f *pflag.Flag) {
		if d := spelling.Distance(name, f.Name); d < least {
			least, similar = d, f.Name
		}
	})
	return similar
}

// run returns the exit status of a command.
func run(c Command, program string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer logs.FlushLogs()
	err := c.Run(ctx)
	status := Status(err)
	switch status {
	case 1:
		klog.ErrorS(err, "Stopped by an error", "command", program)
	case 2:
		fmt.Fprintln(os.Stderr, err)
	}
	return status
}

// Status returns the exit status of a command that ends with err.
func Status(err error) int {
	var wrong flagError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &wrong):
		return 2
	}
	return 1
}
