package statustest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/scheme"

	"sigs.k8s.io/kube-network-policies/pkg/engine/compile"
)

// servedResource is a resource with the versions that a server serves: a newest one and older
// ones.
type servedResource struct {
	groupVersion, kind string
	older              []string
}

// resources are the resources that a server can serve.
var resources = func() map[string]servedResource {
	all := map[string]servedResource{
		"namespaces": {"v1", "Namespace", nil},
		"leases":     {"coordination.k8s.io/v1", "Lease", nil},
		"events":     {"events.k8s.io/v1", "Event", nil},
	}
	for _, k := range compile.Kinds {
		s := servedResource{k.Resource.GroupVersion().String(), k.Name, nil}
		for _, r := range k.Resources()[1:] {
			s.older = append(s.older, r.GroupVersion().String())
		}
		all[k.Resource.Resource] = s
	}
	return all
}()

// RoundTrip implements http.RoundTripper without a connection.
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.currentBehavior().Down {
		return nil, fmt.Errorf("dial %s: %w", r.Host, syscall.ECONNREFUSED)
	}
	if r.Body == nil {
		r = r.Clone(r.Context())
		r.Body = http.NoBody // a handler expects one
	}
	reader, writer := io.Pipe()
	w := &response{header: http.Header{}, body: writer, started: make(chan struct{})}
	go func() {
		s.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
		_ = writer.Close()
	}()
	select {
	case <-w.started:
	case <-r.Context().Done():
		_ = reader.Close()
		return nil, r.Context().Err()
	}
	return &http.Response{
		StatusCode: w.code, Status: strconv.Itoa(w.code), Header: w.header, Body: reader, Request: r,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1,
	}, nil
}

// response is an http.ResponseWriter into a pipe.
type response struct {
	header  http.Header
	body    *io.PipeWriter
	code    int
	started chan struct{}
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
		close(w.started)
	}
}

func (w *response) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

// Flush implements http.Flusher.
func (w *response) Flush() {}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	behavior := s.currentBehavior()
	request, ok := parse(r)
	switch {
	case strings.HasPrefix(r.URL.Path, "/openapi/v3/apis/"):
		s.note(Request{Verb: "discover", Resource: "openapi", At: time.Now()}, http.StatusOK)
		reply(w, http.StatusOK, schemas)
		return
	case !ok:
		s.discover(w, r)
		return
	}
	w = versioned{w, resources[strings.TrimSuffix(request.Resource, "/status")].groupVersion, request.GroupVersion}
	if !s.serves(request.Resource, request.GroupVersion) {
		s.note(request, http.StatusNotFound)
		http.NotFound(w, r) // the path is unknown, so that the answer is plain text
		return
	}
	if request.Verb == "watch" {
		s.watch(w, r, request)
		return
	}
	if !pause(r.Context(), behavior.Delay) {
		return
	}
	body, _ := io.ReadAll(r.Body)
	var answer map[string]any
	var fault *metav1.Status
	if behavior.Refuse != nil {
		fault = behavior.Refuse(request)
	}
	if fault == nil {
		answer, fault = s.answer(r, request, body)
	}
	if fault != nil {
		s.note(request, int(fault.Code))
		reply(w, int(fault.Code), fault)
		return
	}
	s.note(request, http.StatusOK)
	reply(w, http.StatusOK, answer)
}

// versioned converts written objects to another version.
type versioned struct {
	http.ResponseWriter
	stored, asked string
}

func (v versioned) Write(b []byte) (int, error) {
	const field = `"apiVersion":"`
	_, err := v.ResponseWriter.Write(bytes.ReplaceAll(b, []byte(field+v.stored+`"`), []byte(field+v.asked+`"`)))
	return len(b), err
}

// Flush implements http.Flusher.
func (v versioned) Flush() { v.ResponseWriter.(http.Flusher).Flush() }

// pause waits for d and reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Server) note(r Request, code int) {
	r.Code = code
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
}

func reply(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

// parse reads /apis/GROUP/VERSION[/namespaces/NAMESPACE]/RESOURCE[/NAME[/SUB]], and
// /api/v1 in place of the group and its version.
func parse(r *http.Request) (Request, bool) {
	part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	prefix := 3
	if part[0] == "api" {
		prefix = 2
	}
	if len(part) <= prefix {
		return Request{}, false
	}
	version := strings.Join(part[1:prefix], "/")
	part = part[prefix:]
	request := Request{At: time.Now(), GroupVersion: version, Manager: r.URL.Query().Get("fieldManager"), DryRun: r.URL.Query().Has("dryRun")}
	if part[0] == "namespaces" && len(part) > 2 {
		request.Namespace, part = part[1], part[2:]
	}
	request.Resource = part[0]
	if len(part) > 1 {
		request.Name = part[1]
	}
	if len(part) > 2 {
		request.Resource += "/" + part[2]
	}
	request.Verb = map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch"}[r.Method]
	if request.Verb == "get" && request.Name == "" {
		request.Verb = "list"
		if r.URL.Query().Get("watch") != "" {
			request.Verb = "watch"
		}
	}
	_, known := resources[part[0]]
	return request, known
}

// serves reports whether the server serves a resource or its status.
// CustomResourceDefinitions always have a status.
func (s *Server) serves(resource, groupVersion string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.servesLocked(resource, groupVersion)
}

func (s *Server) servesLocked(resource, groupVersion string) bool {
	name, _, _ := strings.Cut(resource, "/")
	if only, ok := s.versions[name]; ok && !slices.Contains(only, groupVersion[strings.LastIndexByte(groupVersion, '/')+1:]) {
		return false
	}
	if resource == "networkpolicies/status" && s.behavior.Status == Unserved {
		return false
	}
	return s.objects[name] != nil
}

// schemas is an answer about schemas that has all kinds, with some of the fields that releases have.
var schemas = func() json.RawMessage {
	var all []string
	for _, k := range compile.AdminKinds() {
		all = append(all, fmt.Sprintf(`%q: {"x-kubernetes-group-version-kind": [{"kind": %q}],
			"properties": {"spec": {"properties": {"ingress": {"items": {"properties": {"from": {"items": {"properties": {"pods": {}}}}}}}}}}}`, k.Name, k.Name))
	}
	return json.RawMessage(`{"components": {"schemas": {` + strings.Join(all, ", ") + `}}}`)
}()

// discover answers a discovery request for a group version, which is unknown while
// none of its resources is served.
func (s *Server) discover(w http.ResponseWriter, r *http.Request) {
	groupVersion := strings.TrimPrefix(r.URL.Path, "/apis/")
	request := Request{Verb: "discover", Resource: groupVersion, At: time.Now()}
	if b := s.currentBehavior(); b.Refuse != nil {
		if fault := b.Refuse(request); fault != nil {
			s.note(request, int(fault.Code))
			reply(w, int(fault.Code), fault)
			return
		}
	}
	var served []metav1.APIResource
	var group metav1.APIGroup
	for _, name := range slices.Sorted(maps.Keys(resources)) {
		in, _, _ := strings.Cut(resources[name].groupVersion, "/")
		for _, version := range s.versionsOf(name) {
			switch {
			case !s.serves(name, in+"/"+version):
			case in == groupVersion:
				group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: in + "/" + version, Version: version})
			case in+"/"+version == groupVersion:
				for _, resource := range []string{name, name + "/status"} {
					if s.serves(resource, groupVersion) {
						served = append(served, metav1.APIResource{Name: resource})
					}
				}
			}
		}
	}
	switch {
	case group.Versions != nil:
		s.note(request, http.StatusOK)
		reply(w, http.StatusOK, group)
	case served != nil:
		s.note(request, http.StatusOK)
		reply(w, http.StatusOK, metav1.APIResourceList{APIResources: served})
	default:
		s.note(request, http.StatusNotFound)
		http.NotFound(w, r)
	}
}

// versionsOf returns the versions in which a resource is served if it is.
func (s *Server) versionsOf(resource string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if only, ok := s.versions[resource]; ok {
		return only
	}
	var all []string
	for _, groupVersion := range append([]string{resources[resource].groupVersion}, resources[resource].older...) {
		all = append(all, groupVersion[strings.LastIndexByte(groupVersion, '/')+1:])
	}
	return all
}

func (s *Server) answer(r *http.Request, request Request, body []byte) (map[string]any, *metav1.Status) {
	switch request.Verb {
	case "list":
		return s.list(request, r.URL.Query())
	case "get":
		return s.get(request)
	case "patch":
		return s.patch(request, body, strings.HasPrefix(r.Header.Get("Content-Type"), "application/merge-patch"), r.URL.Query().Get("force") == "true")
	}
	return s.put(request, body)
}

func (s *Server) list(r Request, query url.Values) (map[string]any, *metav1.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := slices.Sorted(maps.Keys(s.objects[r.Resource]))
	meta := map[string]any{"resourceVersion": strconv.FormatInt(s.version, 10)}
	start, _ := strconv.Atoi(query.Get("continue"))
	end := len(keys)
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && start+limit < end {
		end = start + limit
		meta["continue"] = strconv.Itoa(end)
	}
	list := []any{}
	for _, key := range keys[start:end] {
		list = append(list, s.objects[r.Resource][key].render())
	}
	kind := resources[r.Resource]
	return map[string]any{"apiVersion": kind.groupVersion, "kind": kind.kind + "List", "metadata": meta, "items": list}, nil
}

func (s *Server) get(r Request) (map[string]any, *metav1.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[r.Resource][r.Namespace+"/"+r.Name]; o != nil {
		return o.render(), nil
	}
	return nil, notFound(r)
}

// put creates or updates a Lease or an Event.
func (s *Server) put(r Request, body []byte) (map[string]any, *metav1.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := decode(body)
	if err != nil {
		return nil, failure(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, err.Error())
	}
	u.SetNamespace(r.Namespace)
	next := &object{fields: u.Object, owners: map[owner]sets.Set[string]{}}
	stored := s.objects[r.Resource][r.Namespace+"/"+u.GetName()]
	switch {
	case r.Verb == "create" && stored != nil:
		return nil, failure(http.StatusConflict, metav1.StatusReasonAlreadyExists, "already exists")
	case r.Verb == "update" && stored == nil:
		return nil, notFound(r)
	case r.Verb == "update":
		if status := precondition(stored, u); status != nil {
			return nil, status
		}
	}
	s.store(r.Resource, "MODIFIED", next)
	return next.render(), nil
}

// decode reads a Lease or an Event, in JSON or in protobuf.
func decode(body []byte) (*unstructured.Unstructured, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	return &unstructured.Unstructured{Object: fields}, err
}

// watch sends the changes of a resource until the client disconnects or the server
// ends watches.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, request Request) {
	if r.URL.Query().Has("sendInitialEvents") {
		fault := failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled")
		s.note(request, int(fault.Code))
		reply(w, int(fault.Code), fault)
		return
	}
	seen, _ := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		changes, changed, down := s.since(request, seen)
		if down {
			return
		}
		for _, c := range changes {
			seen = c.version
			if err := json.NewEncoder(w).Encode(map[string]any{"type": c.kind, "object": c.object}); err != nil {
				return
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// since returns the changes after a version, and a channel that is closed at the
// next change. down reports whether the watch ends.
func (s *Server) since(r Request, version int64) (changes []change, next <-chan struct{}, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, _ := slices.BinarySearchFunc(s.history, version+1, func(c change, v int64) int { return int(c.version - v) })
	for _, c := range s.history[first:] {
		if c.resource == r.Resource {
			changes = append(changes, c)
		}
	}
	return changes, s.changed, s.behavior.Down || !s.servesLocked(r.Resource, r.GroupVersion)
}

func failure(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
}

func notFound(r Request) *metav1.Status {
	status := failure(http.StatusNotFound, metav1.StatusReasonNotFound, r.Resource+" "+r.Name+" not found")
	status.Details = &metav1.StatusDetails{Name: r.Name, Kind: r.Resource}
	return status
}

// Forbidden is the error of an authorizer, for Behavior.Refuse.
func Forbidden(r Request) *metav1.Status {
	reason := fmt.Errorf("User %q cannot %s resource %q in the namespace %q", "writer", r.Verb, r.Resource, r.Namespace)
	status := apierrors.NewForbidden(schema.GroupResource{Resource: r.Resource}, r.Name, reason).Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return &status
}

// Conflict is the error for a write of an old version.
func Conflict(r Request) *metav1.Status {
	return failure(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified")
}

// Refused is the error of an admission plugin.
func Refused(r Request) *metav1.Status {
	return failure(http.StatusForbidden, metav1.StatusReasonForbidden, "admission webhook \"guard\" denied the request: no")
}

// Invalid is the error for an object that does not validate.
func Invalid(r Request) *metav1.Status {
	return failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "metadata.annotations: Invalid value")
}
