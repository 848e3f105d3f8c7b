package apiserver

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// The content types of protobuf.
const (
	contentType      = runtime.ContentTypeProtobuf
	watchContentType = contentType + ";stream=watch"
)

// call is one request.
type call struct {
	*Server
	client   *Client
	kind     *kind
	w        http.ResponseWriter
	r        *http.Request
	selected selection
	out      *bufio.Writer // of a watch, nil before its first event
	sent     int64         // bytes so far
}

// current returns the requested objects ordered by name, and their version.
func (c *call) current() (objects [][]byte, version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for name, o := range c.kind.objects {
		if c.selected.has(o) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		objects = append(objects, c.kind.objects[name].encoded)
	}
	return objects, c.version
}

// sendList sends all objects in one message.
func (c *call) sendList() {
	began := time.Now()
	objects, version := c.current()
	message, err := encodeList(c.kind.list, objects, version)
	if err != nil {
		http.Error(c.w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.w.Header().Set("Content-Type", contentType)
	_, _ = c.Write(message)
	c.w.(http.Flusher).Flush()
	c.note(List{Objects: len(objects), Bytes: c.sent, Began: began})
}

// streamList sends all objects as events, and the bookmark that ends them. It returns the
// version from which a watch continues.
func (c *call) streamList() (version uint64) {
	began := time.Now()
	objects, version := c.current()
	c.begin()
	for _, o := range objects {
		_, _ = c.out.Write(frame(watch.Added, o))
	}
	end, err := encodeBookmark(c.kind.example, version)
	if err != nil {
		panic(err) // encoding does not depend on the kind
	}
	_, _ = c.out.Write(frame(watch.Bookmark, end))
	c.flush()
	c.note(List{Objects: len(objects), Bytes: c.sent, Began: began})
	return version
}

// note records a list that has just been sent.
func (c *call) note(l List) {
	l.Kind, l.Ended = reflect.TypeOf(c.kind.example).Elem().Name(), time.Now()
	c.client.mu.Lock()
	defer c.client.mu.Unlock()
	c.client.lists = append(c.client.lists, l)
}

// watch sends the events after a version until the client disconnects.
func (c *call) watch(from uint64) {
	c.client.watches.Add(1)
	defer c.client.watches.Add(-1)
	for {
		events, changed, ok := c.eventsSince(from)
		if !ok {
			c.expire()
			return
		}
		c.begin()
		for _, e := range events {
			from = e.version
			if f := c.selected.frameOf(e); f != nil {
				_, _ = c.out.Write(f)
				c.client.events.Add(1)
			}
		}
		c.flush()
		select {
		case <-changed:
		case <-c.r.Context().Done():
			return
		}
	}
}

// eventsSince returns the events after a version and a channel that is closed at the next
// one. ok is false if the history does not go back to that version.
func (c *call) eventsSince(version uint64) (events []event, changed <-chan struct{}, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	history := c.kind.history
	first, _ := slices.BinarySearchFunc(history, version+1, func(e event, v uint64) int { return int(e.version) - int(v) })
	return history[first:], c.kind.changed, version >= c.kind.dropped
}

// expire answers that the version is too old, so that the client lists again.
func (c *call) expire() {
	if c.out == nil {
		http.Error(c.w, "too old resource version", http.StatusGone)
	}
}

// begin answers that a watch is served.
func (c *call) begin() {
	if c.out == nil {
		c.w.Header().Set("Content-Type", watchContentType)
		c.out = bufio.NewWriterSize(c, 1<<16)
	}
}

func (c *call) flush() {
	_ = c.out.Flush()
	c.w.(http.Flusher).Flush()
}

// Write counts what is sent. If the connection is gone, its request ends soon.
func (c *call) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.sent += int64(n)
	c.client.sent.Add(int64(n))
	return n, err
}

// encodeBookmark returns the object that ends a streamed list.
func encodeBookmark(example runtime.Object, version uint64) ([]byte, error) {
	o := reflect.New(reflect.TypeOf(example).Elem()).Interface().(Object)
	o.SetResourceVersion(strconv.FormatUint(version, 10))
	o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return encode(o)
}

// prefix begins everything that is encoded. A runtime.Unknown follows.
var prefix = []byte{'k', '8', 's', 0}

// encodeList joins encoded objects. Decoding all of them would take gigabytes.
func encodeList(list runtime.Object, objects [][]byte, version uint64) ([]byte, error) {
	var items bytes.Buffer
	field := func(number byte, value []byte) {
		items.WriteByte(number<<3 | 2) // a length-delimited field
		items.Write(binary.AppendUvarint(nil, uint64(len(value))))
		items.Write(value)
	}
	meta, err := (&metav1.ListMeta{ResourceVersion: strconv.FormatUint(version, 10)}).Marshal()
	if err != nil {
		return nil, err
	}
	field(1, meta)
	for _, encoded := range objects {
		var o runtime.Unknown
		if err := o.Unmarshal(encoded[len(prefix):]); err != nil {
			return nil, err
		}
		field(2, o.Raw)
	}
	empty, err := encode(list)
	if err != nil {
		return nil, err
	}
	var whole runtime.Unknown
	if err := whole.Unmarshal(empty[len(prefix):]); err != nil {
		return nil, err
	}
	whole.Raw = items.Bytes()
	body, err := whole.Marshal()
	return append(slices.Clone(prefix), body...), err
}
