package main

import (
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"sigs.k8s.io/kube-network-policies/cmd/kubectl-netpol/workloads"
)

// completionTime limits how long a shell waits for names from the live cluster. Tests raise
// it.
var completionTime = 2 * time.Second

// flagValues are the values of flags that accept only a few.
var flagValues = map[string][]string{
	"by":       {"workload", "pod", "namespace"},
	"color":    {"auto", "always", "never"},
	"fail-on":  {"error", "warning", "info", "none"},
	"family":   {"IPv4", "IPv6"},
	"protocol": {"TCP", "UDP", "SCTP", "ICMP"},
}

// complete registers the completions: names from the files given by -f or from the live
// cluster, and the values of flags.
func (o *options) complete(root *cobra.Command) {
	set := func(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
		if cmd.Flags().Lookup(flag) == nil && cmd.PersistentFlags().Lookup(flag) == nil {
			return
		}
		if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
			panic(err) // the flag is registered twice
		}
	}
	set(root, "namespace", o.names(namespaceNames))
	set(root, "context", o.contexts)
	for _, cmd := range root.Commands() {
		set(cmd, "output", fixed(outputs[cmd.Name()]))
		for flag, values := range flagValues {
			set(cmd, flag, fixed(values))
		}
		for _, flag := range []string{"from", "to"} {
			set(cmd, flag, o.names(sideNamesOf))
		}
		for _, flag := range []string{"port", "selector", "address"} {
			set(cmd, flag, cobra.NoFileCompletions)
		}
		switch cmd.Name() {
		case "assert": // files, which the shell completes
		case "explain":
			cmd.ValidArgsFunction = o.sideArguments
		default:
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
}

func fixed(values []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return beginning(slices.Clone(values), begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// beginning returns the names with the prefix begun.
func beginning(names []string, begun string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !strings.HasPrefix(name, begun) })
}

// sideArguments completes SRC and DST.
func (o *options) sideArguments(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) >= 2 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.names(sideNamesOf)(cmd, args, begun)
}

// names completes the names that list returns for the cluster. If the cluster cannot be
// read in time, it completes nothing.
func (o *options) names(list func(o *options, c completed) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		o.notes = io.Discard
		in, err := o.read(ctx, strings.NewReader(""))
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c := completed{namespaces: map[string]bool{}, workloads: map[workloads.Ref]bool{}}
		for _, n := range in.Namespaces {
			c.namespaces[n.Name] = true
		}
		for _, p := range in.Pods {
			c.namespaces[p.Namespace] = true
			c.workloads[workloads.Of(p)] = true
			c.workloads[workloads.Ref{Kind: workloads.Pod, Namespace: p.Namespace, Name: p.Name}] = true
		}
		for _, s := range o.services.list {
			c.workloads[workloads.Ref{Kind: workloads.Service, Namespace: s.Namespace, Name: s.Name}] = true
		}
		found := beginning(list(o, c), begun)
		slices.Sort(found)
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completed is the cluster's names.
type completed struct {
	namespaces map[string]bool
	workloads  map[workloads.Ref]bool // including Services
}

func namespaceNames(_ *options, c completed) []string {
	return slices.Collect(maps.Keys(c.namespaces))
}

// sideNamesOf returns the names of pods, workloads and Services. Names in the default
// namespace are short; all others have their namespace, unless -n excludes them.
func sideNamesOf(o *options, c completed) []string {
	own := cmp.Or(o.namespace, o.defaultNamespace, metav1.NamespaceDefault)
	var found []string
	for w := range c.workloads {
		name := w.Title()
		switch {
		case w.Namespace == own:
			found = append(found, name)
		case o.namespace == "":
			found = append(found, w.Namespace+"/"+name)
		}
	}
	return found
}

// contexts completes the contexts of the kubeconfig.
func (o *options) contexts(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := rules.Load()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	found := slices.Sorted(maps.Keys(config.Contexts))
	return beginning(found, begun), cobra.ShellCompDirectiveNoFileComp
}
