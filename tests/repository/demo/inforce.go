package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
)

// policyKind is the kind whose changes are awaited.
const policyKind = "NetworkPolicy"

// awaitInForce does a change of one NetworkPolicy, and waits until each agent answers that it decides
// packets. In a cluster, kubectl netpol wait and the condition Enforced say so.
func (s *show) awaitInForce(ctx context.Context, change func() error) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	versions := make([]string, len(s.sockets)) // those of the change, which each agent counts
	for i, socket := range s.sockets {
		before, err := inForce(ctx, socket, nil)
		if err != nil {
			return err
		}
		versions[i] = strconv.Itoa(seen(before) + 1)
	}
	if err := change(); err != nil {
		return err
	}
	started := time.Now()
	for i, socket := range s.sockets {
		for {
			answer, err := inForce(ctx, socket, url.Values{"kind": {policyKind}, "version": {versions[i]}})
			if err != nil {
				return err
			}
			if answer.Check(policyKind, versions[i]) == nil {
				break
			}
		}
	}
	fmt.Fprintf(s.out, "   In force on %d of %d nodes, %.1f s after the change: what kubectl netpol wait waits for\n", len(s.sockets), len(s.sockets), time.Since(started).Seconds())
	return nil
}

// seen returns the newest version of a policy that an agent has received.
func seen(a *inforce.Answer) int {
	for _, k := range a.Kinds {
		if version, err := strconv.Atoi(k.Seen); err == nil && k.Kind == policyKind {
			return version
		}
	}
	return 0
}

// inForce asks the agent of a socket what is in force.
func inForce(ctx context.Context, socket string, query url.Values) (*inforce.Answer, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+inforce.Path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask what is in force: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask what is in force: status %s", response.Status)
	}
	return inforce.Decode(response.Body)
}
