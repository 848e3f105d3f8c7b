package clusterwatch

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// checkVersions makes a watch that follows a failed request fail if the server has not
// reached the watch's resource version, because its data was restored from a backup. Such a
// server would accept the watch and send nothing until it reaches that version. After the
// error the Reflector lists again.
//
// The result serves one Reflector, which never lists and watches at once.
func checkVersions(lw cache.ListerWatcher) cache.ListerWatcher {
	inner := cache.ToListerWatcherWithContext(lw)
	failed := false
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := inner.ListWithContext(ctx, o)
			failed = err != nil
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if failed && o.SendInitialEvents == nil && o.ResourceVersion != "" && o.ResourceVersion != "0" {
				if _, err := inner.ListWithContext(ctx, metav1.ListOptions{
					ResourceVersion: o.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Limit: 1,
				}); err != nil {
					return nil, err
				}
			}
			w, err := inner.WatchWithContext(ctx, o)
			failed = err != nil
			return w, err
		},
	}, lw)
}

// believeAfter is how long lists must be older than the known state before they are believed:
// then the server's data was restored from a backup.
const believeAfter = 30 * time.Second

// refuse returns an error if a list of this version is older than the known state, which then
// stays in force.
func (m *mirror) refuse(version string) error {
	if order, err := resourceversion.CompareResourceVersion(version, m.version); err != nil || order >= 0 {
		m.older = time.Time{}
		return nil
	}
	err := fmt.Errorf("list has version %s, and version %s was seen before", version, m.version)
	switch {
	case m.older.IsZero():
		m.older = time.Now()
		m.logger.Error(err, "List is older than the known state, which stays in force for half a minute", "kind", m.kind.Name)
	case time.Since(m.older) >= believeAfter:
		m.older = time.Time{}
		m.logger.Error(err, "Lists are still older than the known state; the last one is in force", "kind", m.kind.Name)
		return nil
	}
	m.failures.count.Inc()
	return err
}
