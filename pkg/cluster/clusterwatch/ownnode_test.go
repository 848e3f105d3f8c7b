package clusterwatch

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// expectUnhealthy expects an error with all of the words, or none without words.
func (h *harness) expectUnhealthy(t *testing.T, words ...string) {
	t.Helper()
	synctest.Wait()
	err := h.OwnNode()
	if (err == nil) != (len(words) == 0) {
		t.Errorf("own Node: %v, want %q", err, words)
	}
	if err == nil {
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("own Node: %v, want %q", err, word)
		}
	}
	if h.Healthy() == nil {
		t.Error("healthy")
	}
}

// TestAnAgentWithoutItsNodeDecidesNothing until the Node exists. A later deletion changes
// nothing.
func TestAnAgentWithoutItsNodeDecidesNothing(t *testing.T) {
	for _, kinds := range [][]*compile.Kind{nil, {compile.KindAdminNetworkPolicy}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, namespace("x"), node("n.example.com"), node("unlike-any-other"), pod("a", "10.0.0.1"))
			h := startWith(t, c.source(), Config{Kinds: kinds, OwnNode: Required})
			h.expectUnhealthy(t, `no Node "n" in the cluster`, `similar names: "n.example.com"`)
			if got := h.all(); len(got) > 0 {
				t.Fatalf("published %+v", got)
			}
			own := node("n")
			own.Spec.PodCIDRs = []string{"10.0.0.0/24"}
			c.create(own)
			h.expectUnhealthy(t)
			if got := h.last(t).in; !strings.Contains(got, "node/n ") || !strings.Contains(got, "pod/a") {
				t.Errorf("published %s", got)
			}
			c.delete(own)
			h.expectUnhealthy(t, `Node "n" is no longer in the cluster`, `"n.example.com"`)
			c.create(denyAll("deny"))
			synctest.Wait()
			if got := h.last(t).in; !strings.Contains(got, "node/n ") || !strings.Contains(got, "np/deny") {
				t.Errorf("without the Node: published %s", got)
			}
			if got := h.PodRanges(); len(got) > 0 {
				t.Errorf("a Node that is gone has ranges %v", got)
			}
			c.create(own)
			h.expectUnhealthy(t)
			if got := h.PodRanges(); len(got) != 1 {
				t.Errorf("ranges %v", got)
			}
		})
	}
}

// TestNamesOfNodesThatCannotBeRead: the agent may read its own Node only. It asks again.
func TestNamesOfNodesThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, node("n1"))
		var granted atomic.Bool
		c.PrependReactor("list", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			all := a.(clienttesting.ListAction).GetListRestrictions().Fields.Empty()
			return all && !granted.Load(), nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no rule grants it"))
		})
		h := startWith(t, c.source(), Config{OwnNode: Required})
		h.expectUnhealthy(t, `no Node "n"`, "names of the Nodes cannot be read", "no rule grants it")
		granted.Store(true)
		time.Sleep(namesRetry)
		h.expectUnhealthy(t, `similar names: "n1"`)
	})
}

// TestAFolderNeedNotHaveNodes: if it has any, the own one must be among them.
func TestAFolderNeedNotHaveNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startWith(t, newCluster(t).source(), Config{OwnNode: IfAnyNode})
		h.expectUnhealthy(t)
		if len(h.all()) != 1 {
			t.Errorf("published %+v", h.all())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := startWith(t, newCluster(t, node("other")).source(), Config{OwnNode: IfAnyNode})
		h.expectUnhealthy(t, `no Node "n"`, "none of its 1 Nodes has a similar name")
		if len(h.all()) > 0 {
			t.Errorf("published %+v", h.all())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		startWith(t, newCluster(t).source(), Config{OwnNode: Required}).expectUnhealthy(t, "the cluster has no Nodes")
	})
}

// TestTheSavedStateHasTheOwnNode: an unreachable API server does not make the name wrong. If
// the server later reports the Node as deleted, policies are still followed.
func TestTheSavedStateHasTheOwnNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot")
		s := newServer(false)
		s.add(namespace("x"), node("n"), pod("a", "10.0.0.1"))
		h := startWith(t, s.inBubble(t), Config{OwnNode: Required, Saved: savedIn(path, "1", nil)})
		synctest.Wait()
		time.Sleep(time.Minute)
		h.cancel()
		<-h.done

		s.leave(syscall.ECONNREFUSED)
		h = startWith(t, s.inBubble(t), Config{OwnNode: Required, Saved: savedIn(path, "1", nil)})
		h.expectUnhealthy(t)
		s.remove(node("n"))
		s.add(denyAll("deny"))
		s.leave(nil)
		time.Sleep(retryMax)
		h.expectUnhealthy(t, `Node "n" is no longer in the cluster`)
		if got := h.last(t); got.unlisted || !strings.Contains(got.in, "np/deny") {
			t.Errorf("published %+v", got)
		}
	})
}

func TestSimilarNames(t *testing.T) {
	many := []string{"worker-1", "worker-2", "worker-3", "worker-4", "worker-5"}
	for _, tc := range []struct {
		name   string
		others []string
		want   []string
	}{
		{"worker-7.example.com", []string{"control-plane", "worker-7", "worker-8"}, []string{`"worker-7"`}},
		{"worker-7", []string{"worker-7.example.com", "worker-8.example.com"}, []string{`"worker-7.example.com"`}},
		{"wroker-7", []string{"worker-7", "db-1"}, []string{`"worker-7"`}},
		{"worker-9", many, []string{`"worker-1"`, `"worker-2"`, `"worker-3"`}},
		{"ip-10-0-0-1", []string{"gpu"}, nil},
	} {
		if got := similarNames(tc.name, tc.others); !slices.Equal(got, tc.want) {
			t.Errorf("to %s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
