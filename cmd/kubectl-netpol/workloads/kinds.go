package workloads

import (
	"fmt"
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

// Title returns the name within the namespace, such as "deploy/web", or that of a pod.
func (r Ref) Title() string {
	if r.Kind == Pod {
		return r.Name
	}
	return ShortName(r.Kind) + "/" + r.Name
}

// Parse parses [NAMESPACE/][KIND/]NAME. What the name leaves out is empty: KIND/NAME is read as that.
func Parse(name string) (Ref, error) {
	parts := strings.Split(name, "/")
	r := Ref{Name: parts[len(parts)-1]}
	switch {
	case len(parts) > 3 || slices.Contains(parts, ""):
		return Ref{}, fmt.Errorf("%q: must be NAME, KIND/NAME, NAMESPACE/NAME or NAMESPACE/KIND/NAME", name)
	case len(parts) == 3:
		r.Namespace, r.Kind = parts[0], KindNamed(parts[1])
		if r.Kind == "" {
			return Ref{}, fmt.Errorf("%q: %q is not a kind of workload", name, parts[1])
		}
	case len(parts) == 2 && KindNamed(parts[0]) != "":
		r.Kind = KindNamed(parts[0])
	case len(parts) == 2:
		r.Namespace = parts[0]
	}
	return r, nil
}
