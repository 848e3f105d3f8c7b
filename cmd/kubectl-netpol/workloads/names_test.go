package workloads

import "testing"

func TestWhoMayHaveMadeAPod(t *testing.T) {
	for _, tc := range []struct {
		kind, name, pod string
		want            bool
	}{
		{Deployment, "web", "web-7d4f9c8b6d-bcdfg", true},
		{Deployment, "web", "web-bcdfg", false},
		{Deployment, "web", "web-7d4f9c8b6d-abcde", false}, // random contains no vowels
		{Deployment, "web", "web-7d4f9c8b6d-bcdf", false},
		{Deployment, "web", "web-admin-7d4f9c8b6d-bcdfg", false},
		{Deployment, "web-admin", "web-admin-7d4f9c8b6d-bcdfg", true},
		{Deployment, "web", "web", false},
		{Deployment, "web", "other-7d4f9c8b6d-bcdfg", false},
		{ReplicaSet, "web", "web-bcdfg", true},
		{ReplicaSet, "web", "web-7d4f9c8b6d-bcdfg", false},
		{DaemonSet, "log", "log-x2x4x", true},
		{StatefulSet, "db", "db-0", true},
		{StatefulSet, "db", "db-12", true},
		{StatefulSet, "db", "db-x", false},
		{StatefulSet, "db", "db-", false},
		{CronJob, "backup", "backup-28930000-bcdfg", true},
		{CronJob, "backup", "backup-2893-bcdfg", false},
		{CronJob, "backup", "backup-28930000", false},
		{CronJob, "backup", "backup-now-28930000-bcdfg", false},
		{Job, "migrate", "migrate-bcdfg", true},
		{Job, "migrate", "migrate-3-bcdfg", true},
		{Job, "migrate", "migrate-three-bcdfg", false},
		{Pod, "debug", "debug", true},
		{Pod, "debug", "debug-bcdfg", false},
	} {
		t.Run(tc.kind+" "+tc.name+" "+tc.pod, func(t *testing.T) {
			if got := (Ref{tc.kind, "shop", tc.name}).MayHaveMade(tc.pod); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestCommonName(t *testing.T) {
	for name, want := range map[string]string{
		"web-7d4f9c8b6d-bcdfg": "web-*", "db-0": "db-*", "backup-28412345-bcdfg": "backup-*", "agent-bcdfg": "agent-*",
		"index-3-bcdfg": "index-*", "prometheus": "prometheus", "a-b": "a-b",
	} {
		t.Run(name, func(t *testing.T) {
			if got := CommonName(name); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
