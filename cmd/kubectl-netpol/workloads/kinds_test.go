package workloads

import "testing"

func TestKindNamed(t *testing.T) {
	for name, want := range map[string]string{
		"deploy": Deployment, "Deployment": Deployment, "deployments": Deployment,
		"sts": StatefulSet, "ds": DaemonSet, "rs": ReplicaSet, "rc": ReplicationController,
		"job": Job, "cj": CronJob, "CronJob": CronJob, "po": Pod,
		"service": Service, "svc": Service, "": "", "deploys": "",
	} {
		t.Run(name, func(t *testing.T) {
			if got := KindNamed(name); got != want {
				t.Errorf("%q: got %q, want %q", name, got, want)
			}
		})
	}
}

func TestShortName(t *testing.T) {
	for kind, want := range map[string]string{Deployment: "deploy", StatefulSet: "sts", CronJob: "cronjob", Pod: "pod", "Rollout": "rollout"} {
		t.Run(kind, func(t *testing.T) {
			if got := ShortName(kind); got != want {
				t.Errorf("%s: got %q, want %q", kind, got, want)
			}
		})
	}
}
