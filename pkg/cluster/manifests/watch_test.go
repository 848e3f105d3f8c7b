package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// follower keeps the objects of a streamed list and watch, as an informer does.
type follower struct {
	t     *testing.T
	watch watch.Interface
	seen  map[string]string // name to label v
}

func follow(t *testing.T, lw cache.ListerWatcher) *follower {
	t.Helper()
	yes := true
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := cache.ToListerWatcherWithContext(lw).WatchWithContext(ctx, metav1.ListOptions{SendInitialEvents: &yes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	f := &follower{t, w, map[string]string{}}
	for f.next().Type != watch.Bookmark {
	}
	return f
}

func (f *follower) next() watch.Event {
	f.t.Helper()
	select {
	case e := <-f.watch.ResultChan():
		o := e.Object.(object)
		switch e.Type {
		case watch.Added, watch.Modified:
			f.seen[o.GetName()] = o.GetLabels()["v"]
		case watch.Deleted:
			delete(f.seen, o.GetName())
		}
		return e
	case <-time.After(time.Minute):
		f.t.Fatalf("no event, still %s", f)
		return watch.Event{}
	}
}

func (f *follower) String() string {
	var s []string
	for name, v := range f.seen {
		s = append(s, name+"="+v)
	}
	slices.Sort(s)
	return strings.Join(s, " ")
}

// until receives events until it has exactly want.
func (f *follower) until(want string) {
	f.t.Helper()
	for f.String() != want {
		f.next()
	}
}

func TestChangesOfFilesAreSeen(t *testing.T) {
	f := newFolder(t)
	f.write("a.yaml", podV("a", "1"))
	f.run()
	pods := follow(t, f.Objects(compile.KindPod))
	pods.until("a=1")

	f.write("a.yaml", podV("a", "2"))
	pods.until("a=2")
	f.rename("a.yaml", podV("a", "3"))
	pods.until("a=3")
	f.write("new/er/b.yaml", podV("b", "1")) // folders made after the start
	pods.until("a=3 b=1")
	f.rename("new/er/b.yaml", podV("b", "2"))
	pods.until("a=3 b=2")
	if err := os.Rename(f.path("new"), f.path("moved")); err != nil {
		t.Fatal(err)
	}
	f.write("moved/er/c.yaml", podV("c", "1"))
	pods.until("a=3 b=2 c=1")
	f.write("moved/er/c.yaml", podV("c", "2"))
	pods.until("a=3 b=2 c=2")
	f.remove("moved")
	pods.until("a=3")
	f.write("moved/er/b.yaml", podV("b", "3")) // of the same name as before
	pods.until("a=3 b=3")
	f.write("moved/er/b.yaml", podV("b", "4"))
	pods.until("a=3 b=4")
	f.remove("a.yaml")
	pods.until("b=4")
}

func TestSwappedLinksAreSeen(t *testing.T) {
	f := newFolder(t)
	f.write("..1/a.yaml", podV("a", "1"))
	f.link("..1", "..data")
	f.link("..data/a.yaml", "a.yaml")
	f.run()
	pods := follow(t, f.Objects(compile.KindPod))
	pods.until("a=1")
	f.write("..2/a.yaml", podV("a", "2"))
	f.link("..2", "..data")
	pods.until("a=2")
}

func TestASwapOfTheDirectoryItselfIsSeen(t *testing.T) {
	f := newFolder(t)
	f.write("one/a.yaml", podV("a", "1"))
	f.write("two/a.yaml", podV("a", "2"))
	f.link("one", "current")
	at := f.dir
	f.dir = filepath.Join(at, "current")
	f.run()
	pods := follow(t, f.Objects(compile.KindPod))
	pods.until("a=1")
	(&folder{Source: &Source{dir: at}, t: t}).link("two", "current")
	pods.until("a=2")
	f.write("a.yaml", podV("a", "3"))
	pods.until("a=3")
	if err := os.Remove(f.dir); err != nil {
		t.Fatal(err)
	}
	(&folder{Source: &Source{dir: at}, t: t}).link("one", "current")
	pods.until("a=1")
}

func TestNothingIsServedBeforeTheDirectoryWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := make(chan struct{})
		table := newTable(&corev1.Pod{}, ready)
		lw := cache.ToListerWatcherWithContext(table.listerWatcher(""))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := lw.ListWithContext(ctx, metav1.ListOptions{}); err != context.DeadlineExceeded {
			t.Errorf("list: got %v, want a wait", err)
		}
		if _, err := lw.WatchWithContext(ctx, metav1.ListOptions{}); err != context.DeadlineExceeded {
			t.Errorf("watch: got %v, want a wait", err)
		}
		close(ready)
		if _, err := lw.ListWithContext(t.Context(), metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestEveryKindIsServedAsItself(t *testing.T) {
	f := newFolder(t)
	f.write("all.yaml", strings.Join([]string{namespaceX, podA, denyAll, adminPolicy, baselinePolicy, clusterPolicy, nodeN}, "---\n"))
	f.expect("AdminNetworkPolicy admin, BaselineAdminNetworkPolicy default, ClusterNetworkPolicy cluster, " +
		"Namespace x, NetworkPolicy default/deny, Node n, Pod x/a")
	for _, tc := range []struct {
		lw   cache.ListerWatcher
		want string
	}{
		{f.Objects(compile.KindNamespace), "*v1.Namespace x"},
		{f.Objects(compile.KindPod), "*v1.Pod a"},
		{f.Objects(compile.KindNode), "*v1.Node n"},
		{f.Node("n"), "*v1.Node n"},
		{f.Node("other"), ""},
		{f.Objects(compile.KindNetworkPolicy), "*v1.NetworkPolicy deny"},
		{f.Objects(compile.KindAdminNetworkPolicy), "*v1alpha1.AdminNetworkPolicy admin"},
		{f.Objects(compile.KindBaselineAdminNetworkPolicy), "*v1alpha1.BaselineAdminNetworkPolicy default"},
		{f.Objects(compile.KindClusterNetworkPolicy), "*proposed.ClusterNetworkPolicy cluster"},
	} {
		t.Run(tc.want, func(t *testing.T) {
			list, err := cache.ToListerWatcherWithContext(tc.lw).ListWithContext(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got string
			for _, item := range list.(*metav1.List).Items {
				got += fmt.Sprintf("%T %s", item.Object, item.Object.(object).GetName())
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// podsNamed is a table's content.
func podsNamed(names ...string) map[string]object {
	all := map[string]object{}
	for _, name := range names {
		all[name] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	return all
}

func TestAWatchGoesOnFromTheListOnly(t *testing.T) {
	ready := make(chan struct{})
	close(ready)
	table := newTable(&corev1.Pod{}, ready)
	table.replace(podsNamed("a", "b"))
	lw := cache.ToListerWatcherWithContext(table.listerWatcher(""))
	list, err := lw.ListWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := meta.LenList(list); n != 2 {
		t.Errorf("%d objects, want 2", n)
	}
	version := list.(*metav1.List).ResourceVersion
	w, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	table.replace(podsNamed("a", "b")) // no change, no event
	table.replace(podsNamed("a", "c"))
	for _, want := range []watch.EventType{watch.Deleted, watch.Added} {
		if e := <-w.ResultChan(); e.Type != want || e.Object.(object).GetResourceVersion() <= version {
			t.Errorf("got %v, want %s of a later version than %s", e, want, version)
		}
	}
	if _, err := lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: version}); !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from an old version: got %v, want expired", err)
	}
}

func TestWatchOfOneNameYieldsNoOther(t *testing.T) {
	ready := make(chan struct{})
	close(ready)
	table := newTable(&corev1.Pod{}, ready)
	table.replace(podsNamed("a", "b"))
	f := follow(t, table.listerWatcher("a"))
	f.until("a=")
	table.replace(podsNamed("a", "c"))
	table.replace(podsNamed("c"))
	if e := f.next(); e.Type != watch.Deleted || e.Object.(object).GetName() != "a" {
		t.Errorf("got %v, want the deletion of a", e)
	}
}

func TestAStoppedWatchIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble fails if a goroutine is left
		ready := make(chan struct{})
		close(ready)
		table := newTable(&corev1.Pod{}, ready)
		table.replace(podsNamed("a"))
		w, err := table.watch(t.Context(), "", metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.Stop()
		w.Stop()
		table.replace(podsNamed("a", "b"))
		if _, open := <-w.ResultChan(); open || len(table.watchers) > 0 {
			t.Errorf("open %v, %d watchers", open, len(table.watchers))
		}
	})
}
