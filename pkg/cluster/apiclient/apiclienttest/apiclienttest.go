// Package apiclienttest adapts the fakes of client-go, which stream no lists.
package apiclienttest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/cluster/apiclient"
)

// ListWatch is apiclient.ListWatch for a fake.
func ListWatch[L runtime.Object](source apiclient.Source[L], selecting metav1.ListOptions) cache.ListerWatcher {
	return apiclient.ListWatch(fake[L]{source}, selecting)
}

type fake[L runtime.Object] struct{ apiclient.Source[L] }

// IsWatchListSemanticsUnSupported is what reflectors ask.
func (fake[L]) IsWatchListSemanticsUnSupported() bool { return true }
