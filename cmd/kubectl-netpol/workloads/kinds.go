package workloads

import (
	"slices"
	"strings"
)

// Service is the kind of Services, which are no workloads: their names stand for the pods behind
// them.
const Service = "Service"

// names are the names that kubectl accepts for each kind. The first one is printed.
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
	{Service, []string{"svc", "service", "services"}},
}

// KindNamed returns the kind for a name that kubectl accepts, such as "deploy",
// "Deployment" or "deployments", or "".
func KindNamed(name string) string {
	for _, k := range names {
		if slices.Contains(k.names, strings.ToLower(name)) {
			return k.kind
		}
	}
	return ""
}

// ShortName returns the printed name of a kind, such as "deploy". An unknown kind is
// printed in lower case.
func ShortName(kind string) string {
	for _, k := range names {
		if k.kind == kind {
			return k.names[0]
		}
	}
	return strings.ToLower(kind)
}
