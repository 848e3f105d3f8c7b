package cluster

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/kube-network-policies/tests/netpol"
)

// host is a host outside the cluster.
type host struct {
	run       runner
	addresses []netip.Addr
	serve     []string // the command of server
	server    *session
}

// applyHosts serves the ports of state on its hosts and nowhere else, and stores the addresses.
func (b *Backend) applyHosts(ctx context.Context, state *netpol.State) error {
	serve, _ := b.program.serve(state.Ports)
	wanted := make(map[string]bool)
	for _, h := range state.Hosts {
		wanted[h.Name] = true
		current := b.host(h.Name)
		if current != nil && slices.Equal(current.addresses, h.Addrs) && slices.Equal(current.serve, serve) && !current.server.hasEnded() {
			continue
		}
		b.removeHost(h.Name)
		if err := b.addHost(ctx, h, serve); err != nil {
			return fmt.Errorf("host %s: %w", h.Name, err)
		}
	}
	for name := range b.hosts {
		if !wanted[name] {
			b.removeHost(name)
		}
	}
	return nil
}

// addHost starts the server of a host, once it is certain that the host has the program.
func (b *Backend) addHost(ctx context.Context, h netpol.Host, serve []string) error {
	run := onHost(b.cfg.Outside, h.Addrs)
	var output bytes.Buffer
	if err := run(ctx, "", "", b.program.end(), strings.NewReader(""), &output, &output); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(b.cfg.Outside, " "), err, bytes.TrimSpace(output.Bytes()))
	}
	added := &host{run: run, addresses: h.Addrs, serve: serve, server: startSession(run, h.Name, b.program, serve)}
	b.mu.Lock()
	b.hosts[h.Name] = added
	b.mu.Unlock()
	for _, addr := range h.Addrs {
		for via := range netpol.LoadBalancer + 1 { // has no Service
			b.note(h.Name, via, addr.String())
		}
	}
	return nil
}

// removeHost ends the commands on a host.
func (b *Backend) removeHost(name string) {
	b.endSession(name)
	b.mu.Lock()
	removed := b.hosts[name]
	delete(b.hosts, name)
	b.mu.Unlock()
	if removed != nil {
		removed.server.cancel()
		<-removed.server.ended
	}
}

func (b *Backend) host(name string) *host {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hosts[name]
}

// runnerOf returns what runs commands in a pod or on a host. The caller holds mu.
func (b *Backend) runnerOf(name string) runner {
	if h := b.hosts[name]; h != nil {
		return h.run
	}
	return b.run
}

// onHost returns a runner for the host with these addresses, see Config.Outside.
func onHost(prefix []string, addresses []netip.Addr) runner {
	var texts []string
	for _, addr := range addresses {
		texts = append(texts, addr.String())
	}
	return func(ctx context.Context, _, _ string, command []string, in io.Reader, out, errs io.Writer) error {
		line := slices.Concat(prefix, []string{strings.Join(texts, ",")}, command)
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		cmd.Stdout, cmd.Stderr = out, errs
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
		cmd.WaitDelay = endPatience
		// As Stdin, the caller's reader would keep the command's end waiting for input.
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(stdin, in)
			stdin.Close()
		}()
		return cmd.Run()
	}
}
