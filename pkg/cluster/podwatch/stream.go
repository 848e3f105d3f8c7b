package podwatch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// bufferSize is the size of a read, in bytes.
	bufferSize = 64 << 10
	// maxSize is the size of the largest accepted object, in bytes. etcd stores at most a
	// tenth of that.
	maxSize = 16 << 20
)

var errTooLong = fmt.Errorf("longer than the limit of %d bytes", maxSize)

// input is the stream of an answer.
type input struct {
	*bufio.Reader
	room []byte // buffer of the latest piece
}

func newInput(r io.Reader) *input { return &input{Reader: bufio.NewReaderSize(r, bufferSize)} }

// piece reads n bytes, which are valid until the next call. An end of file within them is an
// error.
func (in *input) piece(n uint64) ([]byte, error) {
	if n > maxSize {
		return nil, fmt.Errorf("message of %d bytes is %w", n, errTooLong)
	}
	if uint64(cap(in.room)) < n {
		in.room = make([]byte, n)
	}
	in.room = in.room[:n]
	if _, err := io.ReadFull(in, in.room); err != nil {
		return nil, unexpected(err)
	}
	return in.room, nil
}

// bytesField reads the header of the next field, which must have the type bytes. It returns
// io.EOF if there is none.
func (in *input) bytesField() (id protowire.Number, length uint64, err error) {
	if _, err := in.Peek(1); err != nil {
		return 0, 0, err
	}
	tag, err := binary.ReadUvarint(in)
	if err != nil {
		return 0, 0, unexpected(err)
	}
	id, typ := protowire.DecodeTag(tag)
	if typ != protowire.BytesType {
		return 0, 0, fmt.Errorf("field %d of a list is of type %d", id, typ)
	}
	length, err = binary.ReadUvarint(in)
	return id, length, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readList reads a PodList one pod at a time, because the pods of a large cluster are some
// hundred megabytes.
func readList(body io.Reader, d *decoder) (*List, error) {
	in := newInput(body)
	if begin, err := in.piece(uint64(len(magic))); err != nil || !bytes.Equal(begin, magic) {
		return nil, errors.Join(errNoProtobuf, err)
	}
	for {
		id, length, err := in.bytesField()
		if err != nil {
			return nil, unexpected(err)
		}
		if id == 2 {
			return readItems(in, int64(length), d)
		}
		if _, err := in.piece(length); err != nil {
			return nil, err
		}
	}
}

// readItems reads the message of a PodList, which has length bytes.
func readItems(body io.Reader, length int64, d *decoder) (*List, error) {
	limited := &io.LimitedReader{R: body, N: length}
	in, list := newInput(limited), &List{}
	for {
		id, length, err := in.bytesField()
		if err == io.EOF && limited.N == 0 {
			return list, nil
		}
		if err != nil {
			return nil, unexpected(err)
		}
		message, err := in.piece(length)
		if err != nil {
			return nil, err
		}
		switch id {
		case 1:
			if err := list.Unmarshal(message); err != nil {
				return nil, fmt.Errorf("metadata of a list: %w", err)
			}
		case 2:
			o, err := d.decode(message)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, *o)
		}
	}
}

// waiting is the length of the queue of events. Events come in bursts, and switching
// goroutines for every event would cost more than reading it.
const waiting = 256

// watcher reads a watch: a sequence of WatchEvents, each after its length in four bytes.
type watcher struct {
	body    io.Closer
	in      *input
	decoder *decoder
	listed  func() // called when the initial list has ended
	changed func() // called for each event
	results chan watch.Event
	stopped chan struct{}
	stop    func()
}

func newWatcher(body io.ReadCloser, d *decoder, listed, changed func()) *watcher {
	w := &watcher{
		body: body, in: newInput(body), decoder: d, listed: listed, changed: changed,
		results: make(chan watch.Event, waiting), stopped: make(chan struct{}),
	}
	w.stop = sync.OnceFunc(func() {
		close(w.stopped)
		_ = w.body.Close()
	})
	go w.run()
	return w
}

// Stop ends the watch. Queued events may be lost.
func (w *watcher) Stop() { w.stop() }

// ResultChan is closed when the watch has ended.
func (w *watcher) ResultChan() <-chan watch.Event { return w.results }

func (w *watcher) run() {
	defer close(w.results)
	defer w.stop()
	defer w.listed()
	for {
		e, err := w.next()
		if err != nil {
			return // the connection has ended
		}
		w.changed()
		select {
		case w.results <- e:
		case <-w.stopped:
			return
		}
		if e.Type == watch.Error {
			return
		}
	}
}

// next returns the next event, an error event if it could not be read. It returns an error if
// the connection fails.
func (w *watcher) next() (e watch.Event, err error) {
	var length [4]byte
	if _, err := io.ReadFull(w.in, length[:]); err != nil {
		return e, err
	}
	frame, err := w.in.piece(uint64(binary.BigEndian.Uint32(length[:])))
	if err == nil {
		e, err = w.event(frame)
	} else if !errors.Is(err, errTooLong) {
		return e, err
	}
	if err != nil {
		return watch.Event{Type: watch.Error, Object: &apierrors.NewInternalError(fmt.Errorf("watch of pods: %w", err)).ErrStatus}, nil
	}
	return e, nil
}

// event reads a WatchEvent.
func (w *watcher) event(frame []byte) (e watch.Event, err error) {
	typ, message, err := unwrapEvent(frame)
	if err != nil {
		return e, err
	}
	e.Type = typ
	switch typ {
	case watch.Added, watch.Modified, watch.Deleted:
		e.Object, err = w.decoder.decode(message)
	case watch.Bookmark:
		e.Object, err = w.bookmark(message)
	case watch.Error:
		status := &metav1.Status{}
		e.Object, err = status, status.Unmarshal(message)
	default:
		err = fmt.Errorf("event of type %q", typ)
	}
	return e, err
}

// unwrapEvent reads a WatchEvent up to the message of its object.
func unwrapEvent(frame []byte) (typ watch.EventType, message []byte, err error) {
	err = each(frame, func(f field) error {
		switch f.id {
		case 1:
			typ = watch.EventType(f.bytes)
		case 2: // a RawExtension
			return each(f.bytes, func(f field) (err error) {
				if f.id == 1 {
					message, err = unwrap(f.bytes)
				}
				return err
			})
		}
		return nil
	})
	return typ, message, err
}

// bookmark reads the metadata of a Pod, which is all that a bookmark has.
func (w *watcher) bookmark(message []byte) (*Object, error) {
	o := &Object{}
	err := each(message, func(f field) error {
		if f.id == 1 {
			return o.Unmarshal(f.bytes)
		}
		return nil
	})
	if o.Annotations[metav1.InitialEventsAnnotationKey] == "true" {
		w.listed()
	}
	return o, err
}
