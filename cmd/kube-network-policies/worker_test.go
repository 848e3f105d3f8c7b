package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"sigs.k8s.io/kube-network-policies/pkg/agent"
)

func TestWorkerVariable(t *testing.T) {
	for _, tt := range []struct {
		env    string
		want   agent.Config
		failed bool
	}{
		{env: "0,0"},
		{env: "123,4", want: agent.Config{Started: 123, Restarts: 4}},
		{env: "123", failed: true},
		{env: "x,4", failed: true},
	} {
		t.Run(tt.env, func(t *testing.T) {
			var cfg agent.Config
			err := setWorker(&cfg, tt.env)
			if (err != nil) != tt.failed {
				t.Fatalf("error %v", err)
			}
			if tt.failed {
				return
			}
			if diff := cmp.Diff([]int{int(tt.want.Started), tt.want.Restarts}, []int{int(cfg.Started), cfg.Restarts}); diff != "" {
				t.Errorf("start and restarts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProbeArguments(t *testing.T) {
	for _, tt := range []struct {
		name, socket string
		args         []string
		valid        bool
	}{
		{"livez", "/run/probe", []string{"livez"}, true},
		{"readyz", "/run/probe", []string{"readyz"}, true},
		{"no endpoint", "/run/probe", nil, false},
		{"another endpoint", "/run/probe", []string{"metrics"}, false},
		{"two endpoints", "/run/probe", []string{"livez", "readyz"}, false},
		{"no socket", "", []string{"livez"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := probeOptions{socket: tt.socket}
			if err := o.Validate(tt.args); (err == nil) != tt.valid {
				t.Errorf("error %v", err)
			}
		})
	}
}
