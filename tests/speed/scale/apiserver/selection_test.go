package apiserver

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func podOf(namespace, name, label, node string) *corev1.Pod {
	p := pod(name, label)
	p.Namespace, p.Spec.NodeName = namespace, node
	return p
}

// TestSelections follows pods by the events of one watch for each selection, and lists them
// afterwards.
func TestSelections(t *testing.T) {
	changes := []struct {
		typ watch.EventType
		pod *corev1.Pod
	}{
		{watch.Added, podOf("x", "a", "1", "")},
		{watch.Modified, podOf("x", "a", "1", "node-1")}, // is scheduled
		{watch.Modified, podOf("x", "a", "2", "node-1")}, // gets another label
		{watch.Added, podOf("y", "b", "1", "node-1")},
		{watch.Modified, podOf("y", "b", "3", "node-1")},
		{watch.Modified, podOf("x", "a", "1", "node-1")},
		{watch.Deleted, podOf("x", "a", "1", "node-1")},
	}
	for _, tt := range []struct {
		name, namespace, fields, events string
		objects                         int
	}{
		{"all", "", "", "ADDED a=1, MODIFIED a=1, MODIFIED a=2, ADDED b=1, MODIFIED b=3, MODIFIED a=1, DELETED a=1", 1},
		{"a namespace", "y", "", "ADDED b=1, MODIFIED b=3", 1},
		{"a node", "", "spec.nodeName=node-1", "ADDED a=1, MODIFIED a=2, ADDED b=1, MODIFIED b=3, MODIFIED a=1, DELETED a=1", 1},
		{"a name", "", "metadata.name=c", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, address := newServer(t, true)
			recorded := s.Client()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: address, ContentConfig: rest.ContentConfig{ContentType: contentType}})
			if err != nil {
				t.Fatal(err)
			}
			options := metav1.ListOptions{FieldSelector: tt.fields}
			from := options
			from.ResourceVersion = "1"
			selected, err := client.CoreV1().Pods(tt.namespace).Watch(t.Context(), from)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(selected.Stop)
			for _, c := range changes {
				if c.typ == watch.Deleted {
					if _, err := s.Delete(c.pod); err != nil {
						t.Fatal(err)
					}
					continue
				}
				put(t, s, c.pod)
			}
			var got []string
			for range strings.Count(tt.events, "=") {
				e := <-selected.ResultChan()
				p := e.Object.(*corev1.Pod)
				got = append(got, fmt.Sprintf("%s %s=%s", e.Type, p.Name, p.Labels["l"]))
			}
			if got := strings.Join(got, ", "); got != tt.events {
				t.Errorf("events %q, want %q", got, tt.events)
			}
			listed, err := client.CoreV1().Pods(tt.namespace).List(t.Context(), options)
			if err != nil {
				t.Fatal(err)
			}

			lists := recorded.Lists()
			if len(listed.Items) != tt.objects || len(lists) != 1 || lists[0].Objects != tt.objects {
				t.Errorf("%d pods in %+v, want %d", len(listed.Items), lists, tt.objects)
			}
			if n := recorded.Events(); n != int64(len(got)) || recorded.Watches() != 1 || recorded.Sent() < lists[0].Bytes {
				t.Errorf("%d events, %d watches, %d bytes", n, recorded.Watches(), recorded.Sent())
			}
		})
	}
}

// TestObjectsThatLeaveASelection: they are deleted in their last state, with the version of
// the change.
func TestObjectsThatLeaveASelection(t *testing.T) {
	s, _ := newServer(t, true)
	put(t, s, podOf("x", "a", "1", "node-1"), podOf("x", "a", "1", "node-2"))
	one, err := newSelection("", "spec.nodeName=node-1")
	if err != nil {
		t.Fatal(err)
	}
	history := s.kinds["/api/v1/pods"].history
	got, want := one.frameOf(history[1]), podOf("x", "a", "1", "node-1")
	want.ResourceVersion = "3"
	encoded, err := encode(want)
	if err != nil {
		t.Fatal(err)
	}

	if !slices.Equal(got, frame(watch.Deleted, encoded)) {
		t.Errorf("event %q, want one of %q", got, encoded)
	}
}

func TestSelectionsThatAreRefused(t *testing.T) {
	_, address := newServer(t, true)
	for name, query := range map[string]url.Values{
		"fields": {"fieldSelector": {"a"}},
		"field":  {"fieldSelector": {"status.hostIP=1.2.3.4"}},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := http.Get(address + "/api/v1/pods?" + query.Encode())
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if response.StatusCode != http.StatusBadRequest {
				t.Errorf("status %d, want 400", response.StatusCode)
			}
		})
	}
}
