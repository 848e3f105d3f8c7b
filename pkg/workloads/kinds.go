package workloads

import "strings"

// names are the names that kubectl accepts for a kind, in lower case.
var names = map[string][]string{
	Pod:                   {"pod", "pods", "po"},
	Deployment:            {"deployment", "deployments", "deploy"},
	StatefulSet:           {"statefulset", "statefulsets", "sts"},
	DaemonSet:             {"daemonset", "daemonsets", "ds"},
	ReplicaSet:            {"replicaset", "replicasets", "rs"},
	ReplicationController: {"replicationcontroller", "replicationcontrollers", "rc"},
	Job:                   {"job", "jobs"},
	CronJob:               {"cronjob", "cronjobs", "cj"},
}

// KindNamed returns the kind that kubectl calls name: "deploy", "Deployment",
// "deployments". It returns an empty string if there is none.
func KindNamed(name string) string {
	name = strings.ToLower(name)
	for kind, all := range names {
		for _, n := range all {
			if n == name {
				return kind
			}
		}
	}
	return ""
}
