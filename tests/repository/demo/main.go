// The demo shows the agent at work on one machine, without a cluster: two nodes
// and nine pods as network namespaces, real TCP and UDP connections, and a truth
// table for each change of the policies. The last act makes policies of what the agents
// have recorded. Then it shows kubectl netpol on the manifests of an online shop. Its exit
// status is 1 when anything was not as expected.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
)

// Bounds of the demo.
const (
	startTimeout = time.Minute // for an agent to be ready
	stepTimeout  = time.Minute // for a change to be in force everywhere
)

// agentArgs have the agents enforce the administrators' policies of the demo.
var agentArgs = []string{"--admin-policies"}

// errDiffers says that a table was not as expected. The table has been shown.
var errDiffers = errors.New("not as expected")

func main() {
	agent := flag.String("agent", "bin/kube-network-policies", "path of the agent to run")
	tool := flag.String("tool", "bin/kubectl-netpol", "path of kubectl-netpol")
	examples := flag.String("examples", "examples", "folder of the examples that it is shown on")
	verbose := flag.Bool("v", false, "show every table, and the whole output of commands")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *agent, *tool, *verbose)
	if err == nil {
		err = showTool(ctx, os.Stdout, *tool, *examples, *verbose)
	}
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case interrupted:
		fmt.Println("\nInterrupted. Nothing is left behind.")
		os.Exit(130)
	case errors.Is(err, errors.ErrUnsupported):
		fmt.Fprintf(os.Stderr, "demo: %v\nTry: sudo make demo\n", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run builds the cluster, shows every step on out, and takes the cluster down. It runs the
// programs binary, the agent, and tool.
func run(ctx context.Context, out io.Writer, binary, tool string, verbose bool) error {
	started := time.Now()
	if err := lab.Check(); err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "kube-network-policies-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	watched, err := lab.NewManifests(folder)
	if err != nil {
		return err
	}
	if err := copyCluster(watched); err != nil {
		return err
	}
	cluster, err := lab.New(ctx, lab.Config{Nodes: 2})
	if err != nil {
		return err
	}
	defer cluster.Close()
	pods, err := startPods(ctx, cluster)
	if err != nil {
		return err
	}
	s := show{out: out, verbose: verbose, symbols: symbols(), binary: binary, pods: pods, watched: watched}
	for _, node := range cluster.Nodes {
		s.sockets = append(s.sockets, filepath.Join(folder, node.Name+".sock"))
	}
	if err := s.startAgents(ctx, cluster); err != nil {
		return err
	}
	s.intro(cluster, time.Since(started))
	err = s.steps(ctx)
	if err == nil {
		err = s.suggest(ctx, cluster, tool)
	}
	if err != nil {
		if errors.Is(err, errDiffers) {
			for i, agent := range s.agents {
				fmt.Fprintf(out, "\nThe agent on %s says:\n%s", cluster.Nodes[i].Name, agent.Log())
			}
		}
		return err
	}
	fmt.Fprintf(out, "%s All %d probes were as expected, in %.1f s.\n\n", s.symbols.Reaches, s.probes, time.Since(started).Seconds())
	return nil
}

// startPods gives the pods of the manifests a network and servers.
func startPods(ctx context.Context, cluster *lab.Lab) ([]*lab.Pod, error) {
	objects, err := readPods()
	if err != nil {
		return nil, err
	}
	pods, err := cluster.AddPods(ctx, objects...)
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		if err := pod.Serve(ports...); err != nil {
			return nil, err
		}
	}
	return pods, nil
}

// startAgents starts an agent on every node and waits until all are ready. Those that run are
// stopped first.
func (s *show) startAgents(ctx context.Context, cluster *lab.Lab) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, agent := range s.agents {
		if err := agent.Stop(ctx); err != nil {
			return err
		}
	}
	s.agents = nil
	for i, node := range cluster.Nodes {
		args := append([]string{"--probe-socket=" + s.sockets[i]}, agentArgs...)
		agent, err := node.StartAgent(lab.AgentConfig{Binary: s.binary, Manifests: s.watched.Dir(), Args: args})
		if err != nil {
			return err
		}
		s.agents = append(s.agents, agent)
	}
	for _, agent := range s.agents {
		if err := agent.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}
