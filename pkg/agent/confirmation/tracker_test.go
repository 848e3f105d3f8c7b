package confirmation

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/agent/inforce"
	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

// node is what a tracker reads.
type node struct {
	mu       sync.Mutex
	problem  error
	behind   string
	restores int
}

// change changes the node while requests wait.
func (n *node) change(how func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	how()
}

func (n *node) tracker() *tracker {
	return newTracker(config{
		node: "node-1",
		problem: func(context.Context) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.problem
		},
		following: func() ([]inforce.Kind, int) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return []inforce.Kind{{Kind: "NetworkPolicy", Seen: "200", Behind: n.behind}, {Kind: "Pod"}}, n.restores
		},
	})
}

func ask(t *testing.T, tracker *tracker, query string) (*inforce.Answer, error) {
	t.Helper()
	w := httptest.NewRecorder()
	tracker.ServeHTTP(w, httptest.NewRequest(http.MethodGet, inforce.Path+query, nil))
	if w.Code != http.StatusOK {
		return nil, fmt.Errorf("%d %s", w.Code, strings.TrimSpace(w.Body.String()))
	}
	return inforce.Decode(w.Body)
}

func TestQuestionsThatAreRefused(t *testing.T) {
	for query, want := range map[string]string{
		"?kind=NetworkPolicy":                       `400 kind "NetworkPolicy" and version "": one needs the other`,
		"?version=1":                                `400 kind "" and version "1": one needs the other`,
		"?kind=Policy&version=1":                    `400 kind "Policy": the agent does not enforce it`,
		"?kind=Pod&version=one":                     `400 version "one": must be the metadata.resourceVersion of an object, a positive number`,
		"?kind=Pod&version=-1":                      `400 version "-1": must be the metadata.resourceVersion of an object, a positive number`,
		"?kind=Pod&version=1&timeout=1":             `400 timeout "1": must be a duration from 0s to 5s`,
		"?kind=Pod&version=1&timeout=6s":            `400 timeout "6s": must be a duration from 0s to 5s`,
		"?kind=Pod&version=1&timeout=-1s":           `400 timeout "-1s": must be a duration from 0s to 5s`,
		"?name=web":                                 `400 unknown parameter "name": must be kind, version or timeout`,
		"?kind=Pod&version=1&timeout=1s&generation": `400 unknown parameter "generation": must be kind, version or timeout`,
	} {
		if _, err := ask(t, (&node{}).tracker(), query); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", query, err, want)
		}
	}
}

// A request ends as soon as its version is in force and no problem is left, or at its timeout.
func TestWaiting(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*node, *tracker) // after one second
		want   time.Duration
		err    string
	}{
		{"nothing happens", func(*node, *tracker) {}, bounds.InForceWait, "version 150 is received, and version 100 is in force"},
		{"an older version is in force", func(_ *node, t *tracker) { t.set(map[string]string{"NetworkPolicy": "149"}, 0) }, bounds.InForceWait, "version 149 is in force"},
		{"the version is in force", func(_ *node, t *tracker) { t.set(map[string]string{"NetworkPolicy": "150"}, 0) }, time.Second, ""},
		{"a problem remains", func(n *node, t *tracker) {
			n.change(func() { n.problem = errors.New("the table\nis gone") })
			t.set(map[string]string{"NetworkPolicy": "150"}, 0)
		}, bounds.InForceWait, "the table is gone"},
		{"the watch ends", func(n *node, t *tracker) {
			n.change(func() { n.behind = "not watched" })
			t.set(map[string]string{"NetworkPolicy": "150"}, 0)
		}, bounds.InForceWait, "not watched"},
		{"versions go back", func(n *node, t *tracker) {
			n.change(func() { n.restores++ })
			t.set(map[string]string{"NetworkPolicy": "150"}, 0) // was confirmed too late
		}, bounds.InForceWait, "none is in force"},
		{"versions have gone back", func(n *node, t *tracker) {
			n.change(func() { n.restores++ })
			t.set(map[string]string{"NetworkPolicy": "150"}, 1)
		}, time.Second, ""},
		{"a problem is over", func(n *node, t *tracker) {
			n.change(func() { n.problem = errors.New("the table is gone") })
			t.set(map[string]string{"NetworkPolicy": "150"}, 0)
			time.AfterFunc(950*time.Millisecond, func() { n.change(func() { n.problem = nil }) })
		}, 2 * time.Second, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &node{}
				tracker := n.tracker()
				tracker.set(map[string]string{"NetworkPolicy": "100"}, 0)
				time.AfterFunc(time.Second, func() { tt.change(n, tracker) })
				began := time.Now()
				answer, err := ask(t, tracker, "?kind=NetworkPolicy&version=150&timeout=5s")
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began).Truncate(recheckEvery); took != tt.want {
					t.Errorf("answered after %v, want %v", took, tt.want)
				}
				got := ""
				if err := answer.Check("NetworkPolicy", "150"); err != nil {
					got = err.Error()
				}
				if (got == "") != (tt.err == "") || !strings.Contains(got, tt.err) {
					t.Errorf("got %q, want %q", got, tt.err)
				}
			})
		})
	}
}

func TestWaitingRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := (&node{}).tracker()
		for range bounds.InForceWaiting {
			go tracker.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, inforce.Path+"?kind=Pod&version=1", nil))
		}
		synctest.Wait()
		if _, err := ask(t, tracker, "?kind=Pod&version=1"); err == nil || err.Error() != "429 32 requests wait already: ask with timeout=0s" {
			t.Errorf("one more request: %v", err)
		}
		for _, query := range []string{"", "?kind=Pod&version=1&timeout=0s"} {
			if _, err := ask(t, tracker, query); err != nil {
				t.Errorf("a request that does not wait, %q: %v", query, err)
			}
		}
		time.Sleep(bounds.InForceWait)
		synctest.Wait()
		if _, err := ask(t, tracker, "?kind=Pod&version=1"); err != nil {
			t.Errorf("after the others: %v", err)
		}
	})
}

// The time of a version is that at which it came into force, also if other kinds change.
func TestSinceWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := (&node{}).tracker()
		tracker.set(map[string]string{"NetworkPolicy": "100", "Pod": "1"}, 0)
		time.Sleep(time.Minute)
		tracker.set(map[string]string{"NetworkPolicy": "100", "Pod": "2"}, 0)
		time.Sleep(time.Second)
		answer, err := ask(t, tracker, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(answer.Kinds); got != "[{NetworkPolicy 100 61 200 } {Pod 2 1  }]" {
			t.Errorf("kinds %v", got)
		}
	})
}
