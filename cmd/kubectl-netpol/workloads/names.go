package workloads

import (
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
)

// ControllerLabels are the labels that controllers add to those of the template. They
// differ between the pods of a workload or change with its template.
var ControllerLabels = []string{
	appsv1.DefaultDeploymentUniqueLabelKey, appsv1.ControllerRevisionHashLabelKey, appsv1.StatefulSetPodNameLabel, appsv1.PodIndexLabel,
	batchv1.JobNameLabel, batchv1.ControllerUidLabel, batchv1.JobCompletionIndexAnnotation, "job-name", "controller-uid", "pod-template-generation",
}

// madeNames match the part after "NAME-" in the names of a workload's pods. random matches
// generated suffixes and hashes, which use only these letters. Kinds that are not listed
// add only a generated suffix.
var (
	random    = `[bcdfghjklmnpqrstvwxz2456789]`
	madeNames = map[string]*regexp.Regexp{
		StatefulSet: regexp.MustCompile(`^[0-9]+$`),
		Deployment:  regexp.MustCompile(`^` + random + `+-` + random + `{5}$`),
		CronJob:     regexp.MustCompile(`^([0-9]{8}|[0-9]{10})-` + random + `{5}$`), // see cutTime
		Job:         regexp.MustCompile(`^([0-9]+-)?` + random + `{5}$`),            // the index of an indexed Job
	}
	otherNames = regexp.MustCompile(`^` + random + `{5}$`)
)

// generated match the names of pods, with what is before the generated part.
var generated = []*regexp.Regexp{
	regexp.MustCompile(`^(.+)-` + random + `+-` + random + `{5}$`),
	regexp.MustCompile(`^(.+)-[0-9]{8,10}-` + random + `{5}$`),
	regexp.MustCompile(`^(.+?)-(?:[0-9]+-)?` + random + `{5}$`),
	regexp.MustCompile(`^(.+)-[0-9]+$`),
}

// CommonName returns what the names of all pods of a workload look like, such as "web-*", as far as
// the name of one of them tells, or that name.
func CommonName(pod string) string {
	for _, re := range generated {
		if m := re.FindStringSubmatch(pod); m != nil {
			return m[1] + "-*"
		}
	}
	return pod
}

// MayHaveMade reports whether r may have made a pod of that name in its namespace:
// NAME-HASH-RANDOM for a Deployment, NAME-0 for a StatefulSet, NAME-TIME-RANDOM for a
// CronJob, NAME-RANDOM for other kinds. It does not recognise truncated names.
func (r Ref) MayHaveMade(pod string) bool {
	if r.Kind == Pod {
		return pod == r.Name
	}
	rest, ok := strings.CutPrefix(pod, r.Name+"-")
	names := madeNames[r.Kind]
	if names == nil {
		names = otherNames
	}
	return ok && names.MatchString(rest)
}
