package workloads

import (
	"slices"
	"strings"
)

// names are the names that kubectl accepts for each kind, the one that is printed first.
var names = []struct {
	kind  string
	names []string
}{
	{Deployment, []string{"deploy", "deployment", "deployments"}},
	{StatefulSet, []string{"sts", "statefulset", "statefulsets"}},
	{DaemonSet, []string{"ds", "daemonset", "daemonsets"}},
	{ReplicaSet, []string{"rs", "replicaset", "replicasets"}},
	{ReplicationController, []string{"rc", "replicationcontroller", "replicationcontrollers"}},
	{Job, []string{"job", "jobs"}},
	{CronJob, []string{"cronjob", "cj", "cronjobs"}},
	{Pod, []string{"pod", "po", "pods"}},
}

// KindNamed returns the kind that kubectl calls name: "deploy", "Deployment",
// "deployments". It returns an empty string if there is none.
func KindNamed(name string) string {
	for _, k := range names {
		if slices.Contains(k.names, strings.ToLower(name)) {
			return k.kind
		}
	}
	return ""
}

// ShortName returns the name that is printed for a kind, such as "deploy". For a kind
// that is not known it is the kind in lower case.
func ShortName(kind string) string {
	for _, k := range names {
		if k.kind == kind {
			return k.names[0]
		}
	}
	return strings.ToLower(kind)
}
