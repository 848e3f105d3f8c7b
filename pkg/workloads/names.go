package workloads

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
)

// ControllerLabels are the labels that controllers add to those of a template. They differ
// between the pods of a workload, or change with its template.
var ControllerLabels = []string{
	appsv1.DefaultDeploymentUniqueLabelKey, appsv1.ControllerRevisionHashLabelKey, appsv1.StatefulSetPodNameLabel, appsv1.PodIndexLabel,
	batchv1.JobNameLabel, batchv1.ControllerUidLabel, batchv1.JobCompletionIndexAnnotation, "job-name", "controller-uid", "pod-template-generation",
}

const (
	// randomLength is the length of the end that generated names have.
	randomLength = 5
	// randomLetters are those of generated names and of hashes in names.
	randomLetters = "bcdfghjklmnpqrstvwxz2456789"
	digits        = "0123456789"
)

// MayHaveMade reports whether a pod of that name, in the namespace of r, may be one that r
// has made: NAME-HASH-RANDOM of a Deployment, NAME-0 of a StatefulSet, NAME-TIME-RANDOM of a
// CronJob, NAME-RANDOM of the others. A name that had to be cut is not recognised.
func (r Ref) MayHaveMade(pod string) bool {
	rest, ok := strings.CutPrefix(pod, r.Name+"-")
	if !ok {
		return pod == r.Name && r.Kind == Pod
	}
	parts := strings.Split(rest, "-")
	last := parts[len(parts)-1]
	random := len(last) == randomLength && consistsOf(last, randomLetters)
	switch r.Kind {
	case Pod:
		return false
	case StatefulSet:
		return len(parts) == 1 && consistsOf(last, digits)
	case Deployment:
		return len(parts) == 2 && consistsOf(parts[0], randomLetters) && random
	case CronJob:
		if !random {
			return false
		}
		job := strings.TrimSuffix(pod, "-"+last)
		name, made := cutTime(job)
		return made && name == r.Name
	case Job:
		indexed := len(parts) == 2 && consistsOf(parts[0], digits)
		return random && (len(parts) == 1 || indexed)
	}
	return random && len(parts) == 1
}

// consistsOf reports whether all letters of s are among some, and there is one.
func consistsOf(s, letters string) bool {
	return s != "" && !slices.ContainsFunc([]rune(s), func(r rune) bool { return !strings.ContainsRune(letters, r) })
}
