package inforce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/kube-network-policies/pkg/base/bounds"
)

func TestCheck(t *testing.T) {
	answer := func(edit func(*Kind)) *Answer {
		k := Kind{Kind: "NetworkPolicy", Version: "100", Seen: "120"}
		if edit != nil {
			edit(&k)
		}
		return &Answer{Node: "n", Kinds: []Kind{{Kind: "Pod", Version: "900", Seen: "900"}, k}}
	}
	for name, tt := range map[string]struct {
		answer  *Answer
		version string
		want    string
	}{
		"the same":             {answer(nil), "100", ""},
		"an older one":         {answer(nil), "99", ""},
		"received":             {answer(nil), "101", "NetworkPolicy: version 101 is received, and version 100 is in force"},
		"not received":         {answer(nil), "121", "NetworkPolicy: version 121 is not received, only version 120"},
		"longer than 64 bits":  {answer(nil), "99999999999999999999999", "is not received"},
		"not a number":         {answer(nil), "9x", "is not received"},
		"zero":                 {answer(nil), "0", "is not received"},
		"not watched":          {answer(func(k *Kind) { k.Behind = "not watched" }), "1", "not watched"},
		"nothing in force yet": {answer(func(k *Kind) { k.Version = "" }), "1", "NetworkPolicy: none is in force"},
		"after a restore":      {answer(func(k *Kind) { k.Version, k.Seen = "7", "7" }), "100", "version 100 is not received, only version 7"},
		"another kind":         {&Answer{Node: "n"}, "1", "the agent does not enforce NetworkPolicy"},
		"a problem":            {&Answer{Node: "n", Problem: "x", Kinds: answer(nil).Kinds}, "1", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := tt.answer.Check("NetworkPolicy", tt.version); err != nil {
				got = err.Error()
			}
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// node is what a Tracker reads.
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

func (n *node) tracker() *Tracker {
	return New(Config{
		Node: "node-1",
		Problem: func(context.Context) error {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.problem
		},
		Following: func() ([]Kind, int) {
			n.mu.Lock()
			defer n.mu.Unlock()
			return []Kind{{Kind: "NetworkPolicy", Seen: "200", Behind: n.behind}, {Kind: "Pod"}}, n.restores
		},
	})
}

func ask(t *testing.T, tracker *Tracker, query string) (*Answer, error) {
	t.Helper()
	w := httptest.NewRecorder()
	tracker.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path+query, nil))
	if w.Code != http.StatusOK {
		return nil, fmt.Errorf("%d %s", w.Code, strings.TrimSpace(w.Body.String()))
	}
	return Decode(w.Body)
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
		change func(*node, *Tracker) // after one second
		want   time.Duration
		err    string
	}{
		{"nothing happens", func(*node, *Tracker) {}, bounds.InForceWait, "version 150 is received, and version 100 is in force"},
		{"an older version is in force", func(_ *node, t *Tracker) { t.Set(map[string]string{"NetworkPolicy": "149"}, 0) }, bounds.InForceWait, "version 149 is in force"},
		{"the version is in force", func(_ *node, t *Tracker) { t.Set(map[string]string{"NetworkPolicy": "150"}, 0) }, time.Second, ""},
		{"a problem remains", func(n *node, t *Tracker) {
			n.change(func() { n.problem = errors.New("the table\nis gone") })
			t.Set(map[string]string{"NetworkPolicy": "150"}, 0)
		}, bounds.InForceWait, "the table is gone"},
		{"the watch ends", func(n *node, t *Tracker) {
			n.change(func() { n.behind = "not watched" })
			t.Set(map[string]string{"NetworkPolicy": "150"}, 0)
		}, bounds.InForceWait, "not watched"},
		{"versions go back", func(n *node, t *Tracker) {
			n.change(func() { n.restores++ })
			t.Set(map[string]string{"NetworkPolicy": "150"}, 0) // was confirmed too late
		}, bounds.InForceWait, "none is in force"},
		{"versions have gone back", func(n *node, t *Tracker) {
			n.change(func() { n.restores++ })
			t.Set(map[string]string{"NetworkPolicy": "150"}, 1)
		}, time.Second, ""},
		{"a problem is over", func(n *node, t *Tracker) {
			n.change(func() { n.problem = errors.New("the table is gone") })
			t.Set(map[string]string{"NetworkPolicy": "150"}, 0)
			time.AfterFunc(950*time.Millisecond, func() { n.change(func() { n.problem = nil }) })
		}, 2 * time.Second, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &node{}
				tracker := n.tracker()
				tracker.Set(map[string]string{"NetworkPolicy": "100"}, 0)
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
			go tracker.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, Path+"?kind=Pod&version=1", nil))
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
		tracker.Set(map[string]string{"NetworkPolicy": "100", "Pod": "1"}, 0)
		time.Sleep(time.Minute)
		tracker.Set(map[string]string{"NetworkPolicy": "100", "Pod": "2"}, 0)
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

func TestDecodeRefuses(t *testing.T) {
	many, err := json.Marshal(Answer{Node: "n", Kinds: make([]Kind, bounds.InForceKinds+1)})
	if err != nil {
		t.Fatal(err)
	}
	uncertain, err := json.Marshal(Answer{Node: "n", Uncertain: make([]Uncertain, bounds.InForceUncertain+1)})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(uncertain): "33 policies with uncertain pods, more than 32",

		"":           "not readable",
		"{}":         "no node",
		"[]":         "not readable",
		`{"node":1}`: "not readable",
		string(many): "33 kinds, more than 32",
		`{"node":"` + strings.Repeat("x", bounds.InForceBytes): "longer than 65536 bytes",
	} {
		if _, err := Decode(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", text, err, want)
		}
	}
	a, err := Decode(strings.NewReader(`{"node":"n","problem":"a\u001b[0m` + strings.Repeat("x", 1000) + `"}`))
	if err != nil || len(a.Problem) > bounds.InForceText || strings.Contains(a.Problem, "\x1b") {
		t.Errorf("%q, %v", a.Problem, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"node":"n","problem":"p","kinds":[{"kind":"Pod","version":"1","seconds":2.5,"seen":"3","behind":"b"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Decode(strings.NewReader(text))
		if err != nil {
			return
		}
		// Whatever an agent says, only a version that is at least as high counts.
		for i := range a.Kinds {
			if a.Check(a.Kinds[i].Kind, "100") == nil && !Reaches(a.Kinds[i].Version, "100") {
				for j := range i {
					if a.Kinds[j].Kind == a.Kinds[i].Kind {
						return // the first of a kind counts
					}
				}
				t.Fatalf("%+v reaches version 100", a.Kinds[i])
			}
		}
	})
}
