package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"sigs.k8s.io/kube-network-policies/tests/cluster/conformance/cluster"
)

// build makes a test binary of a suite. Its module lives in the folder of its
// release, so that its libraries are those of that release.
func build(ctx context.Context, release, folder string) error {
	test := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary(folder, release), ".")
	test.Dir = release
	if output, err := test.CombinedOutput(); err != nil {
		return fmt.Errorf("build suite %s: %w: %s", release, err, output)
	}
	return nil
}

func binary(folder, release string) string { return filepath.Join(folder, release+".test") }

// play is a run of a suite on a cluster of its own.
type play struct {
	name       string // of the suite, the cluster and the network
	release    string
	binary     string // of the suite
	kubeconfig string // a file for it
	cfg        cluster.Config
	newNetwork func(context.Context, options) (network, error)
	options    options
}

// suiteTimeout bounds a suite on which every connection is as slow as can be.
const suiteTimeout = time.Hour

var errFailed = errors.New("not everything has passed")

// run runs the suite and prints the result. It returns an error if the suite could
// not be run or a test has not passed.
func (p play) run(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", p.name, err)
		}
	}()
	started := time.Now()
	network, err := p.newNetwork(ctx, p.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, network.Close()) }()
	p.cfg.Network, p.cfg.Release = network, p.release
	server, err := cluster.New(ctx, p.cfg)
	if err != nil {
		return err
	}
	url, stop, err := serve(ctx, server)
	if err != nil {
		return err
	}
	defer stop()
	if err := p.writeKubeconfig(url); err != nil {
		return err
	}
	output, failure := p.exec(ctx)
	counted := countResults(output)
	passed := failure == nil && counted.clean()
	if !passed || p.options.all {
		fmt.Print(output)
	}
	fmt.Printf("%s: %v, %.0f s\n", p.name, counted, time.Since(started).Seconds())
	if !passed {
		return errors.Join(errFailed, failure)
	}
	return nil
}

// serve serves on a free port of loopback until stop is called.
func serve(ctx context.Context, handler http.Handler) (url string, stop func() error, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler}
	go server.Serve(listener)
	return "http://" + listener.Addr().String(), server.Close, nil
}

// writeKubeconfig writes a kubeconfig for the suite's cluster.
func (p play) writeKubeconfig(url string) error {
	const name = "conformance"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: url}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name}
	config.CurrentContext = name
	return clientcmd.WriteToFile(*config, p.kubeconfig)
}

// exec runs the suite's process to its end and returns what it has printed.
func (p play) exec(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, suiteTimeout)
	defer cancel()
	args := []string{"-test.v", "-test.run", "^TestConformance$/" + p.options.run, "-silence", p.options.silence.String()}
	if p.options.report != "" {
		args = append(args, "-report", p.options.report, "-version", p.options.version, "-home", p.options.home, "-proof", p.options.proof)
	}
	test := exec.CommandContext(ctx, p.binary, args...)
	test.Env = append(os.Environ(), "KUBECONFIG="+p.kubeconfig)
	output, err := test.CombinedOutput()
	return string(output), err
}
