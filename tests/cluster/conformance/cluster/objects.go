package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// serveObjects reads and changes the objects of a kind.
func (s *Server) serveObjects(w http.ResponseWriter, r *http.Request) {
	answer, err := s.answer(r)
	if err != nil {
		writeError(w, err)
		return
	}
	code := http.StatusOK
	if r.Method == http.MethodPost {
		code = http.StatusCreated
	}
	write(w, code, answer)
}

func (s *Server) answer(r *http.Request) (runtime.Object, error) {
	k, ok := kindOf(r)
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Group: r.PathValue("group"), Resource: r.PathValue("resource")}, r.PathValue("name"))
	}
	objects, name := s.of(k, r.PathValue("namespace")), r.PathValue("name")
	switch {
	case r.Method == http.MethodGet && name == "":
		return objects.List(r.Context(), metav1.ListOptions{})
	case r.Method == http.MethodGet:
		return objects.Get(r.Context(), name, metav1.GetOptions{})
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	// What has begun is finished, whether or not the client waits for it.
	ctx := context.WithoutCancel(r.Context())
	answer, err := s.change(ctx, r, k, objects, body)
	if err != nil {
		return nil, err
	}
	return answer, s.apply(ctx)
}

// change does what the request asks for, and what controllers do about it.
func (s *Server) change(ctx context.Context, r *http.Request, k kind, objects dynamic.ResourceInterface, body []byte) (runtime.Object, error) {
	name := r.PathValue("name")
	switch r.Method {
	case http.MethodPost:
		object, err := parse(body)
		if err != nil {
			return nil, err
		}
		complete(k, object)
		created, err := objects.Create(ctx, object, metav1.CreateOptions{})
		if err == nil && k == statefulSets {
			return s.rollOut(ctx, created)
		}
		return created, err
	case http.MethodPut:
		object, err := parse(body)
		if err != nil {
			return nil, err
		}
		complete(k, object)
		return objects.Update(ctx, object, metav1.UpdateOptions{})
	case http.MethodPatch:
		patched, err := objects.Patch(ctx, name, types.PatchType(r.Header.Get("Content-Type")), body, metav1.PatchOptions{})
		if err != nil {
			return nil, err
		}
		complete(k, patched)
		return objects.Update(ctx, patched, metav1.UpdateOptions{})
	case http.MethodDelete:
		if k == statefulSets {
			if err := s.removePods(ctx, r.PathValue("namespace"), name); err != nil {
				return nil, err
			}
		}
		return &metav1.Status{TypeMeta: statusMeta, Status: metav1.StatusSuccess}, objects.Delete(ctx, name, metav1.DeleteOptions{})
	}
	return nil, apierrors.NewMethodNotSupported(k.GroupResource(), r.Method)
}

func parse(body []byte) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(body); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return object, nil
}

// complete adds what an API server adds by itself and policies select by.
func complete(k kind, object *unstructured.Unstructured) {
	if k != namespaces {
		return
	}
	labels := object.GetLabels()
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[corev1.LabelMetadataName] = object.GetName()
	object.SetLabels(labels)
}

// of returns the objects of a kind in a namespace, or of all namespaces.
func (s *Server) of(k kind, namespace string) dynamic.ResourceInterface {
	if !k.namespaced {
		return s.objects.Resource(k.GroupVersionResource)
	}
	return s.objects.Resource(k.GroupVersionResource).Namespace(namespace)
}

// add creates an object from its type.
func (s *Server) add(ctx context.Context, k kind, object metav1.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return fmt.Errorf("%s %s: %w", k.name, object.GetName(), err)
	}
	untyped := &unstructured.Unstructured{Object: content}
	untyped.SetGroupVersionKind(k.GroupVersion().WithKind(k.name))
	_, err = s.of(k, object.GetNamespace()).Create(ctx, untyped, metav1.CreateOptions{})
	return err
}

// statusMeta is that of every Status.
var statusMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}

// writeError answers with the Status of an error, as API servers do.
func writeError(w http.ResponseWriter, err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = statusMeta
	write(w, int(status.Code), &status)
}

func write(w http.ResponseWriter, code int, answer any) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(answer) // a client that has gone is no error of ours
}
