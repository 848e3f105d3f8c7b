package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-network-policies/tests/packets/apiserver"
	"sigs.k8s.io/kube-network-policies/tests/packets/lab"
	"sigs.k8s.io/kube-network-policies/tests/packets/load"
	"sigs.k8s.io/kube-network-policies/tests/speed/bench/cluster"
)

// environment is a node, an API server that only this node can reach, and the few pods of a
// large cluster that have a network: two servers on the node and a client on another node.
type environment struct {
	dir            string
	lab            *lab.Lab
	node           *lab.Node
	server, chosen *lab.Pod
	client         *lab.Host
	api            *apiserver.Server
	web            *httptest.Server
	probers        uint16 // so far
}

// clientAddr belongs to none of the generated pods and is outside the node's pod ranges.
var clientAddr = netip.MustParseAddr("10.255.0.2")

// newEnvironment builds the environment with the objects that fill stores for a node.
func newEnvironment(ctx context.Context, fill func(*apiserver.Server, *corev1.Node) error, streaming bool) (_ *environment, err error) {
	e := &environment{api: apiserver.New()}
	e.api.Streaming = streaming
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.dir, err = os.MkdirTemp("", "scale-"); err != nil {
		return nil, err
	}
	if e.lab, err = lab.New(ctx, lab.Config{Nodes: 1}); err != nil {
		return nil, err
	}
	e.node = e.lab.Nodes[0]
	pods, err := e.lab.AddPods(ctx,
		lab.NewPod(cluster.NamespaceName(0), "server", ownNode, nil),
		lab.NewPod(chosenSpace, "server", ownNode, nil))
	if err != nil {
		return nil, err
	}
	e.server, e.chosen = pods[0], pods[1]
	if e.client, err = e.lab.AddHost(ctx, e.node, clientName, clientAddr); err != nil {
		return nil, err
	}
	if err := fill(e.api, e.node.Object()); err != nil {
		return nil, err
	}
	if err := e.put(); err != nil {
		return nil, err
	}
	return e, e.serve()
}

// serve starts the API server on the node.
func (e *environment) serve() error {
	return load.Inside(e.node.NetNS(), func() (err error) {
		e.web, err = e.api.Start()
		return err
	})
}

// kubeconfig writes a file for clients whose paths begin with prefix.
func (e *environment) kubeconfig(name, prefix string) (string, error) {
	path := filepath.Join(e.dir, name)
	return path, apiserver.WriteKubeconfig(path, e.web.URL+prefix)
}

// close ends everything. It may be called at any stage.
func (e *environment) close() error {
	if e.lab != nil {
		e.lab.Close()
	}
	if e.web != nil {
		e.web.CloseClientConnections()
		e.web.Close()
	}
	return os.RemoveAll(e.dir)
}
