package main

import (
	"strings"
	"testing"

	"sigs.k8s.io/kube-network-policies/pkg/agent/serve"
)

// In the container of an agent, probe needs no flag.
func TestProbeOptions(t *testing.T) {
	for args, want := range map[string]string{ // the socket, or a part of the error
		"readyz":                      serve.DefaultSocket,
		"livez --probe-socket=/run/x": "/run/x",
		"livez --probe-socket=":       "--probe-socket=: must not be empty",
		"metrics":                     serve.DefaultSocket,
		"table":                       serve.DefaultSocket,
		"":                            "must be livez, readyz, metrics or table",
		"flows":                       "must be livez, readyz, metrics or table",
	} {
		t.Run(args, func(t *testing.T) {
			c, name, rest := program.Choose(append([]string{probeName}, strings.Fields(args)...))
			err := program.Parse(c, name, rest)
			got := c.(*probeOptions).socket
			if err != nil {
				got = err.Error()
			}

			if !strings.Contains(got, want) {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}
